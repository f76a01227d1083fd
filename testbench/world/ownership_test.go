package world_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/rounds"
	"github.com/geogate/geogate/testbench/world"
)

// clients are those of a region that write until they are stopped, and remember
// what was acknowledged.
type clients struct {
	region *world.Region
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu    sync.Mutex
	acked []client.Answer
	last  time.Time // of the last acknowledgement
	codes map[string]int
}

// pour begins to write events and entities in a region, under keys that the regions
// share. Its clients pause between their writes, so that the writes of tests that wait for
// leases do not take all of the processors; with all rounds they do not.
func pour(r *world.Region) *clients {
	between := rounds.Of(75*time.Millisecond, 0)
	ctx, cancel := context.WithCancel(context.Background())
	w := &clients{region: r, stop: cancel, codes: map[string]int{}}
	for c := range 3 {
		w.done.Go(func() {
			for n := int64(0); ctx.Err() == nil; n++ {
				topic, key := github, fmt.Sprintf("repo-%d", n%7)
				if n%2 == 0 {
					topic, key = flights, fmt.Sprintf("flight-%d", n%9)
				}
				wait := between
				if !w.try(ctx, topic, key, fmt.Sprintf(`{"by":"%s-%d","n":%d}`, r.Name, c, n), fmt.Sprintf("%s-%d-%d", r.Name, c, n)) {
					wait = 20 * time.Millisecond // a refused client pauses before it goes on to other things
				}
				select {
				case <-ctx.Done():
				case <-time.After(wait):
				}
			}
		})
	}
	return w
}

func (w *clients) try(ctx context.Context, topic, key, value, idem string) (acked bool) {
	a, err := w.region.Try(ctx, client.Write{Topic: topic, Key: key, Value: []byte(value), Idem: idem})
	if ctx.Err() != nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		a.Topic = topic
		w.acked, w.last = append(w.acked, a), time.Now()
		return true
	}
	w.codes[client.Code(err)]++
	return false
}

func (w *clients) end() []client.Answer {
	w.stop()
	w.done.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.acked)
}

func (w *clients) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acked)
}

// refused waits until a region's writes to both topics are refused with a code.
func refused(t *testing.T, w *world.World, r *world.Region, status int, code string) *client.Problem {
	t.Helper()
	var last *client.Problem
	for _, topic := range []string{flights, github} {
		key := "refused"
		w.Eventually(fmt.Sprintf("writes to %s in %s to be %s", topic, r.Name, code), func() error {
			_, err := r.Try(limit(t), client.Write{Topic: topic, Key: key, Value: []byte(`0`)})
			if client.Code(err) != code {
				return fmt.Errorf("got %v", err)
			}
			last = problem(t, err, status, code)
			return nil
		})
	}
	return last
}

func fence(t *testing.T, at *world.Region, what string, code ownership.ResultCode) ownership.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	result, err := at.Fence(ctx, what, "test")
	if err != nil || result.Code != code {
		t.Fatalf("fence %s from %s: %+v, %v", what, at.Name, result, err)
	}
	return result
}

func unfence(t *testing.T, at *world.Region, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if result, err := at.Unfence(ctx, what); err != nil || result.Code != 0 {
		t.Fatalf("unfence %s from %s: %+v, %v", what, at.Name, result, err)
	}
}

// writesAgain stores a write in a region that was unfenced. The command ends with
// the register; the region itself learns of it later, and says NOT_OWNER until then.
func writesAgain(t *testing.T, w *world.World, r *world.Region, wr client.Write) (a client.Answer) {
	t.Helper()
	w.Eventually(r.Name+" to write again", func() (err error) {
		a, err = r.Try(limit(t), wr)
		switch client.Code(err) {
		case "", "NOT_OWNER", "OWNERSHIP_UNPROVEN", "NOT_READY":
		default:
			t.Fatalf("after unfence: %v", err)
		}
		return err
	})
	return a
}

// accounted: each acknowledged write counts in every region, or listed by
// one as an orphan, never both; and all regions show the same.
func accounted(t *testing.T, w *world.World, acked []client.Answer) (orphans map[string]client.Orphan) {
	t.Helper()
	w.Settle()
	orphans = map[string]client.Orphan{}
	for _, u := range status(t, w.Region("us")).Units {
		unit, met := u.Unit, map[string]uint64{}
		for _, r := range w.Regions() {
			list, err := r.Orphans(unit)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range list {
				orphans[o.Topic+" "+o.Dot] = o
			}
			met[r.Name] = uint64(len(list))
			for _, u := range status(t, r).Units {
				if u.Unit == unit && u.Orphans != met[r.Name] {
					t.Errorf("status of %s counts %d orphans of %s, %d are listed", r.Name, u.Orphans, unit, met[r.Name])
				}
			}
		}
	}
	for _, topic := range []string{flights, github} {
		var logs []string
		for _, r := range w.Regions() {
			shown := map[string]bool{}
			for _, x := range w.Regions() {
				for _, rec := range records(t, r, topic, "origin:"+x.Name) {
					shown[rec.Dot] = true
				}
			}
			for _, a := range acked {
				if a.Topic == topic && shown[a.Dot] == (orphans[topic+" "+a.Dot] != client.Orphan{}) {
					t.Errorf("%s of %s is shown in %s: %v, orphan: %v", a.Dot, topic, r.Name, shown[a.Dot], !shown[a.Dot])
				}
			}
			logs = append(logs, strings.Join(slices.Sorted(maps.Keys(shown)), " "))
		}
		if len(slices.Compact(logs)) != 1 {
			t.Errorf("the logs of %s differ between regions", topic)
		}
	}
	sameEverywhere(t, w, acked, orphans)
	return orphans
}

// sameEverywhere compares what the regions show of entities and events.
func sameEverywhere(t *testing.T, w *world.World, acked []client.Answer, orphans map[string]client.Orphan) {
	t.Helper()
	for n := range 9 {
		key := fmt.Sprintf("flight-%d", n)
		var raw []string
		for _, r := range w.Regions() {
			e, err := r.Entity(flights, key)
			if err != nil && client.Code(err) != "ENTITY_UNKNOWN" {
				t.Fatal(err)
			}
			raw = append(raw, e.Raw)
			for dot := range strings.SplitSeq(e.Version, "+") {
				if _, lost := orphans[flights+" "+dot]; lost {
					t.Errorf("%s shows orphan %s under %s", r.Name, dot, key)
				}
			}
		}
		if len(slices.Compact(slices.Clone(raw))) != 1 {
			t.Errorf("entity %s differs:\n%s", key, strings.Join(raw, "\n"))
		}
	}
	for _, r := range w.Regions() {
		ids := map[string]int{}
		for _, rec := range records(t, r, github, "merged") {
			if _, lost := orphans[github+" "+rec.Dot]; lost {
				t.Errorf("the merged view of %s shows orphan %s", r.Name, rec.Dot)
			}
			ids[rec.Dot]++
		}
		for _, a := range acked {
			_, lost := orphans[github+" "+a.Dot]
			if a.Topic == github && !lost && ids[a.Dot] != 1 {
				t.Errorf("the merged view of %s has %s %d times", r.Name, a.Dot, ids[a.Dot])
			}
		}
	}
}

// readsOnly wants a region that is ready for reads, and not for writes for a reason.
func readsOnly(t *testing.T, r *world.Region, why string) {
	t.Helper()
	if err := r.Client().ReadyForReads(limit(t)); err != nil {
		t.Errorf("%s is not ready for reads: %v", r.Name, err)
	}
	if err := r.Client().Ready(limit(t)); err == nil || !strings.Contains(err.Error(), "[-]writes no partition takes a write") || !strings.Contains(err.Error(), why) {
		t.Errorf("%s is not ready for writes: %v, want %q", r.Name, err, why)
	}
}

// TestFenceAlive: a region that answers is fenced under load and taken back: it
// stops within a moment, nothing that was acknowledged is lost, and nothing is an
// orphan.
func TestFenceAlive(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Register: true})
	us, eu := w.Region("us"), w.Region("eu")
	first := eu.Put(github, "first", `1`)
	us.Put(github, "first", `1`)
	there, here := pour(eu), pour(us)
	w.Eventually("both regions to write", func() error {
		if there.count() < 20 || here.count() < 20 {
			return fmt.Errorf("%d and %d writes", there.count(), here.count())
		}
		return nil
	})
	before := time.Now()
	result := fence(t, us, "eu", 0)
	answered := time.Now()
	if len(result.Units) == 0 || slices.ContainsFunc(result.Units, func(u ownership.FencedUnit) bool { return u.Cut != ownership.CutEnd }) {
		t.Errorf("fence: %+v", result)
	}
	p := refused(t, w, eu, 409, "NOT_OWNER")
	if p.Retriable {
		t.Errorf("%+v", p)
	}
	readsOnly(t, eu, "fenced")
	acked := there.end()
	there.mu.Lock()
	t.Logf("the last acknowledged write came %s after the fence began", there.last.Sub(before).Round(time.Millisecond))
	if there.last.After(answered) || there.last.Sub(before) > 5*time.Second { // a lease is longer
		t.Errorf("the last acknowledged write came %s after the fence began, which ended after %s", there.last.Sub(before), answered.Sub(before))
	}
	there.mu.Unlock()
	// The region's links have come to its cuts, and say so rather than lag.
	w.Eventually("the link from eu to stop", func() error {
		for _, l := range status(t, eu).Links {
			if len(l.Stopped) == 0 || l.LagRecords == nil || *l.LagRecords != 0 {
				return fmt.Errorf("%+v", l)
			}
		}
		return nil
	})
	unfence(t, us, "eu")
	again := writesAgain(t, w, eu, client.Write{Topic: github, Key: "again", Value: []byte(`2`)})
	if again.Epoch <= first.Epoch || again.Epoch%16 != 2 {
		t.Errorf("epoch %d after %d", again.Epoch, first.Epoch)
	}
	acked = append(acked, here.end()...)
	if orphans := accounted(t, w, append(acked, first)); len(orphans) != 0 {
		t.Errorf("%d orphans after an orderly fence", len(orphans))
	}
}

// TestFenceCutOff: a region that neither the register nor the other region can
// reach goes on under its lease, and no longer. What it had answered and nobody
// else had applied does not count: it leaves every view once the region knows of the
// cut, its keys are free again, and the region goes on under a new epoch.
func TestFenceCutOff(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Register: true})
	us, eu := w.Region("us"), w.Region("eu")
	kept := eu.Put(flights, "kept", `"eu"`, world.Idem("kept"))
	us.Put(github, "first", `1`)
	w.Settle()
	w.CutAll()
	w.CutRegister("eu")
	began := time.Now()
	lost := eu.Put(github, "lost", `"eu"`, world.Idem("lost"))
	over := eu.Put(flights, "kept", `"over"`, world.Idem("over"))
	fresh := eu.Put(flights, "fresh", `"eu"`)
	there := pour(eu)
	result := fence(t, us, "eu", 10)
	t.Logf("fence: %s after %s", result.Detail, time.Since(began).Round(time.Millisecond))
	// Nobody can have told eu: it says that it cannot prove what it owns.
	p := refused(t, w, eu, 503, "OWNERSHIP_UNPROVEN")
	if !p.Retriable || p.Header.Get("Retry-After") != "3" {
		t.Errorf("%+v, %v", p, p.Header)
	}
	readsOnly(t, eu, "the ownership register is unreachable")
	if st := status(t, eu); !warns(st.Warnings, warning.RegisterUnreachable, "register", "cannot be reached") {
		t.Errorf("warnings %v", st.Warnings)
	}
	acked := append(there.end(), kept, lost, over, fresh)
	// The other region takes over what clients try again there, and knows nothing
	// of what was lost.
	retried := us.Put(github, "lost", `"eu"`, world.Idem("lost"))
	if retried.Replayed {
		t.Fatalf("us knows the lost write: %s", retried.Raw)
	}
	if e := entity(t, eu, flights, "kept"); e.Dot != over.Dot {
		t.Errorf("eu does not know of its fence, and shows %s", e.Raw)
	}
	w.HealRegister("eu")
	healed := time.Now()
	refused(t, w, eu, 409, "NOT_OWNER")
	t.Logf("eu knew that it is fenced %s after the register was back", time.Since(healed).Round(time.Millisecond))
	w.Eventually("eu to revoke what lies past its cut", func() error {
		e, err := eu.Entity(flights, "kept")
		if err != nil || e.Dot != kept.Dot {
			return fmt.Errorf("shows %s, %v", e.Raw, err)
		}
		return nil
	})
	_, err := eu.Entity(flights, "fresh")
	problem(t, err, 404, "ENTITY_UNKNOWN")
	w.HealAll()
	unfence(t, us, "eu")
	again := writesAgain(t, w, eu, client.Write{Topic: flights, Key: "kept", Value: []byte(`"again"`)})
	if again.Epoch <= kept.Epoch {
		t.Errorf("epoch %d after %d", again.Epoch, kept.Epoch)
	}
	acked = append(acked, retried, again)
	orphans := accounted(t, w, acked)
	for _, a := range []client.Answer{lost, over, fresh} {
		if o := orphans[a.Topic+" "+a.Dot]; o.ID == nil || *o.ID != a.ID || o.Epoch == nil || *o.Epoch != uint64(a.Epoch) {
			t.Errorf("orphan %s of %s: %+v", a.Dot, a.Topic, o)
		}
	}
	// Each key has one effect, in whichever region it is tried once more.
	if a := eu.Put(github, "lost", `"eu"`, world.Idem("lost")); !a.Replayed || a.Dot != retried.Dot {
		t.Errorf("retry of the retried write in eu: %s", a.Raw)
	}
	if a := eu.Put(flights, "kept", `"over"`, world.Idem("over")); a.Replayed || a.Epoch != again.Epoch {
		t.Errorf("retry of an orphan in eu: %s", a.Raw)
	}
	if a := eu.Put(flights, "kept", `"eu"`, world.Idem("kept")); !a.Replayed || a.Dot != kept.Dot {
		t.Errorf("retry of a write that counts: %s", a.Raw)
	}
	for _, r := range w.Regions() {
		if n := len(of(records(t, r, github, "merged"), "lost")); n != 1 {
			t.Errorf("%d effects of one key in %s", n, r.Name)
		}
	}
	rebuilt(t, w, acked, orphans)
}

// rebuilt: a region that has lost its store, and with it every index, finds the
// same orphans and shows the same.
func rebuilt(t *testing.T, w *world.World, acked []client.Answer, want map[string]client.Orphan) {
	t.Helper()
	w.Stop("eu")
	w.DeleteStore("eu")
	w.StartAgain("eu")
	w.Region("eu").AwaitReady()
	got := accounted(t, w, acked)
	if g, x := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, x) {
		t.Errorf("orphans with a new store: %v\nbefore: %v", g, x)
	}
	retry := w.Region("eu").Put(github, "lost", `"eu"`, world.Idem("lost"))
	if !retry.Replayed {
		t.Errorf("retry with a new store: %s", retry.Raw)
	}
}

// TestFencesUnderLoad: fences of a region that was killed and comes back without its
// store, of one that the register has lost, and of one unit, while both regions
// write all the time.
func TestFencesUnderLoad(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Register: true})
	us, eu := w.Region("us"), w.Region("eu")
	us.Put(github, "first", `1`)
	eu.Put(github, "first", `1`)
	here, there := pour(us), pour(eu)
	more := func(c *clients) {
		t.Helper()
		had := c.count()
		w.Eventually(c.region.Name+" to write", func() error {
			if n := c.count(); n < had+20 {
				return fmt.Errorf("%d writes, %d before", n, had)
			}
			return nil
		})
	}
	more(here)
	more(there)

	w.Cut("eu", "us")
	more(there)
	w.Kill("eu")
	fence(t, us, "eu", 10)
	w.DeleteStore("eu")
	w.StartAgain("eu")
	refused(t, w, eu, 409, "NOT_OWNER")
	unfence(t, us, "eu")
	w.Heal("eu", "us")
	more(there)

	w.CutRegister("us")
	w.CutAll()
	more(here)
	fence(t, eu, "us", 10)
	more(there)
	w.HealRegister("us")
	refused(t, w, us, 409, "NOT_OWNER")
	w.HealAll()
	unfence(t, eu, "us")
	more(here)

	fence(t, eu, "repos/us", 0)
	more(here) // the other unit
	unfence(t, us, "repos/us")
	more(here)

	acked := append(here.end(), there.end()...)
	orphans := accounted(t, w, acked)
	t.Logf("%d acknowledged writes, %d orphans, refused: us %v, eu %v", len(acked), len(orphans), here.codes, there.codes)
	if len(orphans) == 0 {
		t.Error("no orphan was made, so nothing was tried")
	}
}

// TestLateCut: a third region has applied more of a fenced one than the region that
// fences knows of. It takes back what lies past the cut: entities show what was
// there before, and an event that was retried elsewhere is shown as the retry.
func TestLateCut(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Register: true, Regions: 3})
	us, eu, ap := w.Region("us"), w.Region("eu"), w.Region("ap")
	before := eu.Put(flights, "flight-1", `"before"`)
	us.Put(github, "first", `1`)
	ap.Put(github, "first", `1`)
	w.Settle()
	w.Cut("eu", "us")
	w.Cut("ap", "us") // or ap's progress would tell us how much there is
	pastCut := eu.Put(flights, "flight-1", `"past the cut"`)
	gone := eu.Put(flights, "flight-2", `"past the cut"`)
	single := eu.Put(github, "single", `"past the cut"`)
	first := eu.Put(github, "twice", `1`, world.Idem("twice"))
	over := ap.Put(flights, "flight-1", `"saw it"`, world.Token(pastCut.Token))
	w.Eventually("ap to apply the first copy", func() error { // before the other one is there
		all, err := ap.Records(github, "merged")
		if err == nil && len(of(all, "twice")) != 1 {
			err = fmt.Errorf("shows %+v", all)
		}
		return err
	})
	second := us.Put(github, "twice", `1`, world.Idem("twice"))
	w.Eventually("ap to apply all of it", func() error {
		all, err := ap.Records(github, "merged")
		if err == nil && (len(of(all, "single")) != 1 || len(of(all, "twice")) != 1 || of(all, "twice")[0].Dot != first.Dot) {
			err = fmt.Errorf("shows %+v", all)
		}
		feed, ferr := ap.Conflicts(github)
		if err == nil && ferr == nil && len(feed) == 0 {
			err = errors.New("the twin has not come")
		}
		return errors.Join(err, ferr)
	})
	w.Cut("eu", "ap")
	w.CutRegister("eu")
	fence(t, us, "eu", 10)
	w.Eventually("ap to take back what lies past the cut", func() error {
		all, err := ap.Records(github, "merged")
		if err == nil && (len(of(all, "single")) != 0 || len(of(all, "twice")) != 1 || of(all, "twice")[0].Dot != second.Dot) {
			err = fmt.Errorf("shows %+v", all)
		}
		return err
	})
	if e := entity(t, ap, flights, "flight-1"); e.Dot != over.Dot || e.Version != over.Dot {
		t.Errorf("ap shows %s", e.Raw)
	}
	_, err := ap.Entity(flights, "flight-2")
	problem(t, err, 404, "ENTITY_UNKNOWN")
	w.HealRegister("eu")
	w.HealAll()
	unfence(t, us, "eu")
	again := writesAgain(t, w, eu, client.Write{Topic: flights, Key: "flight-2", Value: []byte(`"again"`)})
	orphans := accounted(t, w, []client.Answer{before, pastCut, gone, single, first, over, second, again})
	for _, a := range []client.Answer{pastCut, gone, single, first} {
		if _, ok := orphans[a.Topic+" "+a.Dot]; !ok {
			t.Errorf("%s of %s is no orphan", a.Dot, a.Topic)
		}
	}
	list, err := ap.Orphans("repos/eu")
	i := slices.IndexFunc(list, func(o client.Orphan) bool { return o.Dot == first.Dot })
	if err != nil || i < 0 || list[i].Instead == nil || *list[i].Instead != second.Dot {
		t.Errorf("orphans that ap has met: %+v, %v", list, err)
	}
	for _, r := range w.Regions() {
		if a := r.Put(github, "twice", `1`, world.Idem("twice")); !a.Replayed || a.Dot != second.Dot {
			t.Errorf("retry in %s: %s", r.Name, a.Raw)
		}
	}
}

const homes = `version: 1
kind: OwnershipPolicy
domains:
  - {name: catalogue, match: ["catalogue"], kind: entity, mode: single_region, owner: eu, policy: lww, on_foreign_write: reject, partitions: 1}
  - {name: orders, match: ["orders"], kind: entity, mode: by_key, owner: 'headers["home"]', policy: lww, on_foreign_write: reject, partitions: 1}
  - {name: ledger, match: ["ledger"], kind: events, mode: single_region, owner: eu, on_foreign_write: reject, partitions: 1}
`

// TestForeignWritesAreRejected: with an owner or a home elsewhere the answer says
// who owns the unit, under which epoch and in which state, also once it is fenced.
func TestForeignWritesAreRejected(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Register: true, Ownership: homes})
	us, eu := w.Region("us"), w.Region("eu")
	key := "k"
	write := func(r *world.Region, topic, home string) (client.Answer, error) {
		wr := client.Write{Topic: topic, Key: key, Value: []byte(`1`)}
		if home != "" {
			wr.Headers = []client.Header{{Name: "home", Value: home}}
		}
		return r.Store(limit(t), wr)
	}
	must := func(r *world.Region, topic, home string) client.Answer {
		t.Helper()
		a, err := write(r, topic, home)
		if err != nil {
			t.Fatalf("write to %s in %s: %v", topic, r.Name, err)
		}
		return a
	}
	rejects := func(r *world.Region, topic, home, want string) {
		t.Helper()
		_, err := write(r, topic, home)
		var p *client.Problem
		if !errors.As(err, &p) || p.Status != 409 || p.Code != "NOT_OWNER" || p.Retriable {
			t.Fatalf("%s in %s: %v", topic, r.Name, err)
		}
		owner := "" // nobody
		if p.Owner != nil {
			owner = *p.Owner
		}
		if got := fmt.Sprint(p.Unit, " ", owner, " ", p.Epoch, " ", p.State); got != want {
			t.Errorf("%s in %s: %s, want %s (%s)", topic, r.Name, got, want, p.Detail)
		}
	}
	a := must(eu, "catalogue", "")
	if a.Unit != "catalogue" || a.Epoch != 18 {
		t.Errorf("answer %s", a.Raw)
	}
	rejects(us, "catalogue", "", "catalogue eu 18 ACTIVE")
	if a := must(us, "orders", "us"); a.Unit != "orders/us" || a.Epoch != 17 {
		t.Errorf("answer %s", a.Raw)
	}
	must(eu, "orders", "eu")
	rejects(us, "orders", "eu", "orders/eu eu 18 ACTIVE")
	_, err := write(us, "orders", "ap")
	problem(t, err, 422, "INVALID_RECORD")
	_, err = write(us, "orders", "")
	problem(t, err, 422, "INVALID_RECORD")
	w.Settle()
	if here, there := entity(t, us, "catalogue", key), entity(t, eu, "catalogue", key); here.Raw != there.Raw || here.Dot != a.Dot {
		t.Errorf("us %s\neu %s", here.Raw, there.Raw)
	}
	raw, _, err := us.Instance(0).Do(limit(t), http.MethodGet, "/v1/topics/catalogue/ownership?key=k", nil, nil)
	var owns struct {
		Unit, Owner string
		Writable    bool
	}
	if err != nil || json.Unmarshal(raw, &owns) != nil || owns.Unit != "catalogue" || owns.Owner != "eu" || owns.Writable {
		t.Errorf("%s, %v", raw, err)
	}
	fence(t, us, "catalogue", 0)
	rejects(eu, "catalogue", "", "catalogue  33 FENCED")
	rejects(us, "catalogue", "", "catalogue  33 FENCED")
	must(eu, "orders", "eu") // another unit
	w.Run("a log whose region never owned the unit stands still, and nothing else does", neverOwned)
}

// neverOwned puts a record past the gateway into the log of a region that may not
// write the topic.
func neverOwned(t *testing.T, w *world.World) {
	us, eu := w.Region("us"), w.Region("eu")
	if err := us.Produce(limit(t), &kgo.Record{Topic: "ledger", Key: []byte("k"), Value: []byte(`"native"`)}); err != nil {
		t.Fatal(err)
	}
	a := eu.Put("ledger", "k", `"owner"`)
	for _, r := range w.Regions() {
		w.Eventually("the merged view of "+r.Name, func() error {
			all, err := r.Records("ledger", "merged")
			if err == nil && (len(all) != 1 || all[0].Dot != a.Dot) {
				err = fmt.Errorf("shows %+v", all)
			}
			return err
		})
	}
	w.Eventually("us to say why it waits", func() error {
		st := status(t, us)
		if !warns(st.Warnings, warning.WaitsForRegister, "ledger/0", "events of us wait until us owns ledger") {
			return fmt.Errorf("warnings %v", st.Warnings)
		}
		for _, l := range st.Links {
			for _, x := range l.Stopped {
				if x.Topic == "ledger" && x.Unit == "ledger" && x.Offset == 0 && *l.LagRecords == 0 {
					return nil
				}
			}
		}
		return fmt.Errorf("links %+v", st.Links)
	})
	page, err := us.Page(limit(t), "ledger", "local", "earliest", 10)
	if err != nil || len(page.Records) != 0 || page.End {
		t.Errorf("the local log of us: %+v, %v", page, err)
	}
	if n := len(records(t, us, "ledger", "origin:eu")); n != 1 {
		t.Errorf("%d records of eu in us", n)
	}
}
