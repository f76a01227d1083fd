package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
)

// owned is an ownership register by hand.
type owned struct {
	w       *world
	table   *event.ValidityTable
	unread  bool                // nothing is known of it
	orphans []conflict.Orphaned // of github, in order of partition and dot
}

func (o *owned) Check(string) error { return nil }
func (o *owned) Units() ([]UnitView, error) {
	if o.unread {
		return nil, ErrUnread
	}
	return []UnitView{{Revision: 9, Record: ownership.UnitRecord{Unit: "repos/eu", Epoch: 34}}}, nil
}

func (o *owned) Command(context.Context, ownership.Command) (ownership.Result, error) {
	return ownership.Result{}, ErrNoRegister
}

func (o *owned) Report(context.Context) (ownership.RegisterReport, error) {
	return ownership.RegisterReport{}, ErrNoRegister
}

func (o *owned) Act(context.Context, ownership.RegisterAct) (ownership.RegisterPlan, error) {
	return ownership.RegisterPlan{}, ErrNoRegister
}

func (o *owned) Intervals(string, int32) *event.ValidityTable {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	return o.table
}

func (o *owned) Orphans(_ string, after OrphanPlace, fn func(OrphanPlace, *conflict.Orphaned) bool) error {
	for i := range o.orphans {
		if at := (OrphanPlace{"github", o.orphans[i].At}); at.Compare(after) > 0 && !fn(at, &o.orphans[i]) {
			break
		}
	}
	return nil
}

// cutTable has the first epochs of both regions, one of them cut at an offset and
// followed by another epoch that begins at a later one.
func cutTable(r event.RegionID, cut int64, epoch event.Epoch, start int64) *event.ValidityTable {
	a := &event.ValidityTable{Revision: 2}
	for _, o := range []event.RegionID{us, eu} {
		a.Logs[o] = event.Tenures{Known: event.FirstEpoch(o), List: []event.Tenure{{Epoch: event.FirstEpoch(o)}}}
	}
	t := &a.Logs[r]
	t.Known = epoch
	t.List[0].Ended, t.List[0].Cut = true, []event.Point{{Next: cut}}
	t.List = append(t.List, event.Tenure{Epoch: epoch, Start: []event.Point{{Next: start}}})
	return a
}

// under gives an event another epoch.
func under(ev event.Event, epoch event.Epoch) event.Event {
	ev.Epoch = epoch
	return ev
}

func TestLogsLeaveOrphansOut(t *testing.T) {
	for name, origin := range map[string]event.RegionID{"local": us, "origin:eu": eu} {
		t.Run(name, func(t *testing.T) {
			with, cl := withKafka(t, "github", "eu.github")
			reg := &owned{}
			w := newWorld(t, func(c *Config, d *Deps) { with(c, d); d.Ownership = reg })
			everyMarkerIsABarrier(w)
			reg.w, reg.table = w, cutTable(origin, 2, 49, 3)
			topic := "github"
			if origin == eu {
				topic = "eu.github"
				w.remote["github"] = control.Topic{Name: topic, ID: [16]byte{9}}
				for i := range int64(5) {
					w.describe(0, i, i, -1, control.Mapped)
				}
			}
			log := func(offset int64, epoch event.Epoch) {
				ev := under(stamped(origin, 0, offset, 0, "a", fmt.Sprint(offset)), epoch)
				logged(t, cl, topic, ev)
			}
			produce(t, cl, topic, 0, nil, []byte("native"), nil) // 0: its place counts
			log(1, event.FirstEpoch(origin))
			log(2, event.FirstEpoch(origin)) // past the cut
			log(3, 49)
			log(4, 65) // of an epoch that is not known here
			path := "/v1/topics/github/records?view=" + name
			region := w.s.cfg.Topology.Name(origin)
			p := w.page(path)
			if want := region + "/0/0/0 " + region + "/0/0/1 " + region + "/0/0/3"; p.dots() != want || p.End {
				t.Fatalf("%s: %s, end %v", name, p.dots(), p.End)
			}
			if again := w.page(path + "&from=" + p.Next); len(again.Records) != 0 || again.End || again.Next != p.Next {
				t.Errorf("before the register is known: %+v", again)
			}
			later := cutTable(origin, 2, 49, 3)
			later.Logs[origin].Known = 65
			later.Logs[origin].List = append(later.Logs[origin].List, event.Tenure{Epoch: 65, Start: []event.Point{{Next: 4}}})
			w.mu.Lock()
			reg.table = later
			w.mu.Unlock()
			if p = w.page(path + "&wait=10s&from=" + p.Next); p.dots() != region+"/0/0/4" || !p.End {
				t.Errorf("once it is: %s, end %v", p.dots(), p.End)
			}
		})
	}
}

// TestMergedLeavesOrphansOut: by the table that the view has folded, whatever the
// register says meanwhile.
func TestMergedLeavesOrphansOut(t *testing.T) {
	with, cl := withKafka(t, "github.merged", "flights.merged")
	w := newWorld(t, with)
	for i := range int64(4) {
		merge(t, cl, "github", 0, stamped(eu, 0, i, 0, "a", fmt.Sprint(i)))
	}
	gone := conflict.Merged{Event: &event.Event{At: event.Dot{Region: eu, Offset: 2}, Key: []byte("a"), Timestamp: goldenTime}, Corrects: true}
	produce(t, cl, "github.merged", 0, gone.Event.Key, nil, gone.Headers())
	st := w.seat("github", 0)
	st.commit(vector(6, 4), 5)
	w.seat("github", 1).commit(vector(0, 0), -1)
	read := "/v1/topics/github/records?from=earliest"
	if got := w.page(read).dots(); got != "eu/0/0/0 eu/0/0/1 eu/0/0/2 eu/0/0/3" {
		t.Errorf("with no table: %s", got)
	}
	// eu is cut at 2: 2 is taken back, 3 means us's copy of the same write.
	instead := event.Dot{Region: us, Offset: 5}
	ev := stamped(us, 0, 5, 0, "a", `"retried"`)
	st.mu.Lock()
	st.table = cutTable(eu, 2, 34, 4)
	st.orphans = map[event.Dot]conflict.Orphaned{
		{Region: eu, Offset: 2}: {At: event.Dot{Region: eu, Offset: 2}},
		{Region: eu, Offset: 3}: {At: event.Dot{Region: eu, Offset: 3}, Instead: instead},
	}
	st.events = map[event.Dot]event.Event{instead: ev}
	st.mu.Unlock()
	p := w.page(read)
	if p.dots() != "eu/0/0/0 eu/0/0/1 us/0/0/5" || string(p.Records[2].Value) != `{"type":"json","data":"retried"}` || !p.End {
		t.Errorf("under the cut: %+v", p)
	}
	st.mu.Lock()
	st.fetchErr = view.ErrGone // retention has deleted the copy
	st.mu.Unlock()
	r := w.do(get(read))
	if body := text(t, r); r.StatusCode != 200 || strings.Contains(body, "retried") || r.Header.Get("Geogate-Incomplete") != "github/0" {
		t.Errorf("without the copy: status %d, lacks %q: %s", r.StatusCode, r.Header.Get("Geogate-Incomplete"), body)
	}
	st.mu.Lock()
	st.fetchErr = nil
	st.mu.Unlock()
	// Who has read it as an orphan, or as the copy, does not read it again.
	for _, seen := range []event.Vector{vector(0, 4), vector(6, 2)} {
		c := event.Cursor{View: event.MergedView, Topic: event.HashTopic("github"), Visible: eu, At: map[int32]event.Vector{0: seen}}
		if p := w.page("/v1/topics/github/records?from=" + c.String()); len(p.Records) != 0 {
			t.Errorf("from %v: %s", seen, p.dots())
		}
	}
}

// TestMergedEntityLeavesOrphansOut: the change that brought an orphan is left out,
// and what it gave way to stays, also where nothing is left.
func TestMergedEntityLeavesOrphansOut(t *testing.T) {
	with, cl := withKafka(t, "flights.merged")
	w := newWorld(t, with)
	merge(t, cl, "flights", event.LWW, stamped(us, 0, 0, 0, "a", `1`))
	merge(t, cl, "flights", event.LWW, stamped(eu, 0, 2, 0, "a", `2`))
	merge(t, cl, "flights", event.LWW, stamped(eu, 0, 3, 0, "b", `3`))
	again := stamped(us, 0, 0, 0, "a", `1`)
	back := conflict.Merged{Event: &again, Rule: event.LWW, Corrects: true}
	produce(t, cl, "flights.merged", 0, back.Event.Key, back.Event.Value, back.Headers())
	gone := conflict.Merged{Event: &event.Event{At: event.Dot{Region: eu, Offset: 3}, Key: []byte("b"), Timestamp: goldenTime}, Rule: event.LWW, Corrects: true}
	produce(t, cl, "flights.merged", 0, gone.Event.Key, nil, gone.Headers())
	st := w.seat("flights", 0)
	st.commit(vector(1, 4), 5)
	st.table = cutTable(eu, 2, 34, 4)
	p := w.page("/v1/topics/flights/records?from=earliest")
	if p.dots() != "us/0/0/0 us/0/0/0 eu/0/0/3" || p.Records[2].Op != "del" {
		t.Errorf("page %+v", p)
	}
	// A cursor from a region that had not heard of the cut begins before what the cut
	// has corrected; one that had met the next epoch does not.
	moved := func(seen int64) string {
		c := event.Cursor{View: event.MergedView, Topic: event.HashTopic("flights"), Visible: eu, At: map[int32]event.Vector{0: vector(1, seen)}}
		return w.page("/v1/topics/flights/records?from=" + c.String()).dots()
	}
	if got := moved(4); got != "us/0/0/0 us/0/0/0 eu/0/0/3" {
		t.Errorf("from before the cut: %q", got)
	}
	st.commit(vector(1, 6), 5)
	if got := moved(6); got != "" {
		t.Errorf("from behind the next start: %q", got)
	}
}

func TestListOrphans(t *testing.T) {
	reg := &owned{}
	w := newWorld(t, func(_ *Config, d *Deps) { d.Ownership = reg })
	reg.w = w
	full := conflict.Orphaned{
		At: event.Dot{Region: eu, Offset: 7}, ID: goldenID(), Stamp: goldenStamp(), Timestamp: goldenTime, Epoch: 18, Op: event.Put,
		Key: []byte("octocat/hello"), Instead: event.Dot{Region: us, Offset: 3},
	}
	bare := conflict.Orphaned{At: event.Dot{Region: eu, Partition: 1, Offset: 2}, Stamp: goldenStamp(), Timestamp: goldenTime, Op: event.Delete}
	reg.orphans = []conflict.Orphaned{full, {At: event.Dot{Region: eu, Offset: 8}, Stamp: goldenStamp(), Op: event.Put}, bare}
	want := `{"dot":"eu/0/0/7","topic":"github","key":{"type":"string","data":"octocat/hello"},"id":"01a226bf-497b-7c3e-9a51-6f0d2f1b7e10",` +
		`"stamp":"01a226bf497b0007","timestamp":"2026-11-29T10:00:00.123Z","epoch":18,"op":"put","instead":"us/0/0/3"}`
	body := text(t, do(t, w.s.managementHandler(), get("/v1/ownership/orphans?unit=repos/eu&limit=1")))
	if !strings.HasPrefix(body, `{"orphans":[`+want+`],"next":"`) || !strings.HasSuffix(body, `,"end":false}`+"\n") {
		t.Errorf("first page: %s", body)
	}
	var got []string
	next := ""
	for range 9 {
		r := w.do(get("/v1/ownership/orphans?unit=repos/eu&limit=2&from=" + next))
		var p struct {
			Orphans []struct {
				Dot       string
				ID, Epoch json.RawMessage
			}
			Next string
			End  bool
		}
		if body = text(t, r); json.Unmarshal([]byte(body), &p) != nil || r.StatusCode != 200 {
			t.Fatalf("%d %s", r.StatusCode, body)
		}
		for _, o := range p.Orphans {
			got = append(got, fmt.Sprintf("%s %s", o.Dot, o.Epoch))
		}
		if next = p.Next; p.End {
			break
		}
	}
	if s := strings.Join(got, ", "); s != "eu/0/0/7 18, eu/0/0/8 null, eu/0/1/2 null" {
		t.Errorf("two by two: %s", s)
	}
	if body = text(t, w.do(get("/v1/ownership/orphans?unit=repos/eu&from="+next))); !strings.Contains(body, `"orphans":[]`) || !strings.Contains(body, next) {
		t.Errorf("behind the end: %s", body)
	}
	reg.orphans = nil
	body = text(t, w.do(get("/v1/ownership/orphans?unit=repos/eu")))
	var none struct{ Next string }
	if json.Unmarshal([]byte(body), &none) != nil || w.do(get("/v1/ownership/orphans?unit=repos/eu&from="+none.Next)).StatusCode != 200 {
		t.Errorf("an empty list: %s", body)
	}
	for query, code := range map[string]string{"": "MALFORMED", "?unit=repos/ap": "MALFORMED", "?unit=repos/eu&from=AQJ": "CURSOR_INVALID", "?unit=repos/eu&limit=0": "MALFORMED"} {
		if p := problemOf(t, w.do(get("/v1/ownership/orphans"+query))); p["code"] != code {
			t.Errorf("%s: %v", query, p)
		}
	}
}

// TestUnreadRegister: that nothing is known of the register is told, and is not an
// empty list.
func TestUnreadRegister(t *testing.T) {
	reg := &owned{unread: true}
	w := newWorld(t, func(_ *Config, d *Deps) { d.Ownership = reg })
	reg.w = w
	for _, path := range []string{"/v1/ownership", "/v1/ownership/orphans?unit=repos/eu", "/v1/topics/github/ownership?key=a"} {
		if p := problemOf(t, w.do(get(path))); p["code"] != "NOT_READY" || p["retriable"] != true {
			t.Errorf("%s: %v", path, p)
		}
	}
}

// TestOrphansAreLimitedByBytes: a page of orphans with large keys ends before it
// is as large as its number of entries allows, and goes on where it ended.
func TestOrphansAreLimitedByBytes(t *testing.T) {
	reg := &owned{}
	w := newWorld(t, func(_ *Config, d *Deps) { d.Ownership = reg })
	for i := range int64(20) {
		reg.orphans = append(reg.orphans, conflict.Orphaned{At: event.Dot{Region: eu, Offset: i}, Key: []byte(strings.Repeat("k", maxPage/8)), Op: event.Put})
	}
	from, seen, pages := "", 0, 0
	for end := false; !end; pages++ {
		body := text(t, w.do(get("/v1/ownership/orphans?unit=repos%2Feu&limit=10000&from="+from)))
		if len(body) > maxPage+maxPage/4 {
			t.Fatalf("a page has %d bytes", len(body))
		}
		var page struct {
			Orphans []json.RawMessage
			Next    string
			End     bool
		}
		if err := json.Unmarshal([]byte(body), &page); err != nil {
			t.Fatal(err)
		}
		from, end, seen = page.Next, page.End, seen+len(page.Orphans)
	}
	if seen != 20 || pages < 2 {
		t.Errorf("%d orphans on %d pages", seen, pages)
	}
}
