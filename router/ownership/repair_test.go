package ownership_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/mirror"
	"github.com/geogate/geogate/router/ownership/register"
)

// repaired has a register repaired, and waits until the instance believes it. A repair
// that gets no answer in time is asked for again, as an operator would.
func repaired(t *testing.T, ctx context.Context, a *ownership.Client) {
	t.Helper()
	for {
		p := a.Act(ctx, ownership.RegisterAct{Verb: ownership.RegisterRepair, Reason: "a disk was restored"})
		if p.Code == ownership.ResultDone {
			break
		}
		if p.Code != ownership.ResultUnreachable || ctx.Err() != nil {
			t.Fatalf("repair: %+v", p)
		}
		pause(ctx, 100*time.Millisecond)
	}
	until(t, patience, "belief in the repaired register", func() bool { return a.Tokens().Regressed == "" })
}

// unfenced has a region unfenced, as soon as the instance has read the register again.
func unfenced(t *testing.T, ctx context.Context, a *ownership.Client, region string) {
	t.Helper()
	if r := ask(ctx, a, ownership.Command{Verb: ownership.VerbUnfence, Region: region}); r.Code != ownership.ResultDone {
		t.Fatalf("unfence: %+v", r)
	}
}

// TestWipedRegister: the register's only server has lost its directory. The new stream
// begins past what was seen, and after a repair the region writes again in a later
// epoch, also when it has forgotten its mark.
func TestWipedRegister(t *testing.T) {
	for name, markToo := range map[string]bool{"register": false, "register and mark": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			dir := t.TempDir()
			s := newSite(t, "us", 1)
			s.lease = shortLease()
			const unit = "default/us"
			n := startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: dir})
			a, stop := s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
			until(t, patience, "grant", granted(a, unit))
			until(t, patience, "mark", func() bool { m, err := ownership.LoadMark(s.dir); return err == nil && m.Epochs[unit] == 17 })
			until(t, patience, "copy", func() bool { revisions, _ := s.testimonies(unit); return len(revisions) > 0 })
			seen, _ := s.testimonies(unit)
			stop()
			n.Close()
			must(t, os.RemoveAll(dir))
			if markToo {
				s.dir = t.TempDir()
			}
			n = startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: dir})
			a, stop = s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
			until(t, patience, "alarm", func() bool { return a.Status().State == "regressed" })
			repaired(t, ctx, a)
			unfenced(t, ctx, a, "us")
			until(t, patience, "grant", granted(a, unit))
			if g, _ := a.Grant(unit); g.Epoch <= 17 || a.Tokens().Units[unit].Revision <= seen[len(seen)-1] {
				t.Errorf("granted in epoch %d, at revision %d, and %v were seen", g.Epoch, a.Tokens().Units[unit].Revision, seen)
			}
			stop()
			a, _ = s.start(register.Config{Dialer: n.Dialer(), Replicas: 1}) // the mark is the new register's
			until(t, patience, "grant after a restart", granted(a, unit))
			if p := a.Act(ctx, ownership.RegisterAct{Verb: ownership.RegisterRepair, DryRun: true}); p.Code != ownership.ResultDone || len(p.Steps) > 0 {
				t.Errorf("a register that is whole: %+v", p)
			}
		})
	}
}

// TestRegisterPastTheLog: a cut or a start past the end of a log, that somebody has
// brought into the register, gives no epoch, or is shown; a repair mends it.
func TestRegisterPastTheLog(t *testing.T) {
	const unit, far = "default/us", 1_000_000_000_000
	for name, tt := range map[string]struct {
		forge   func(*ownership.UnitRecord)
		granted bool
		shown   string
	}{
		"cut": {func(u *ownership.UnitRecord) {
			last := &u.Epochs[len(u.Epochs)-1]
			last.Ended, last.Cut = true, []ownership.Extent{{Topic: "t", Offsets: []int64{far}}}
			u.Owner, u.State, u.Scope, u.Epoch = "", ownership.UnitFenced, ownership.ScopeRegion, 34
		}, false, "the cut of epoch 17 of default/us in t/0 is 1000000000000, and the log ends at 7"},
		"start": {func(u *ownership.UnitRecord) {
			u.Epochs[0].Start = []ownership.Extent{{Topic: "t", Offsets: []int64{far}}}
		}, true, "the start of epoch 17 of default/us in t/0 is 1000000000000, and the log ends at 7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			s := newSite(t, "us", 1)
			s.lease = shortLease()
			n := startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: t.TempDir()})
			a, _ := s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
			until(t, patience, "grant", granted(a, unit))
			js := streams(t, nats.InProcessServer(n.Dialer()))
			u := a.Tokens().Units[unit].Record
			tt.forge(&u)
			data, err := json.Marshal(u)
			must(t, err)
			if _, err := js.Publish(ctx, ownership.UnitSubject(unit), data); err != nil {
				t.Fatal(err)
			}
			until(t, patience, "report", func() bool {
				wrong := a.Tokens().PastEnds
				return len(wrong) == 1 && wrong[0].String() == tt.shown
			})
			if granted(a, unit)() != tt.granted {
				t.Errorf("granted: %t", !tt.granted)
			}
			p := a.Act(ctx, ownership.RegisterAct{Verb: ownership.RegisterRepair, DryRun: true})
			if p.Code != ownership.ResultDone || len(p.Steps) != 1 || !strings.Contains(p.Steps[0], tt.shown) {
				t.Errorf("dry run: %+v", p)
			}
			if p := a.Act(ctx, ownership.RegisterAct{Verb: ownership.RegisterRepair, Reason: "a forged cut"}); p.Code != ownership.ResultDone {
				t.Fatalf("repair: %+v", p)
			}
			until(t, patience, "grant after the repair", func() bool { return granted(a, unit)() && len(a.Tokens().PastEnds) == 0 })
			for _, e := range a.Tokens().Units[unit].Record.Epochs {
				for _, x := range append(e.Start, e.Cut...) {
					if x.Offsets[0] > 7 {
						t.Errorf("epoch %d has offset %d", e.Epoch, x.Offsets[0])
					}
				}
			}
		})
	}
}

// TestForgedCopy: a record of valid form that somebody has written into _geogate.ownership
// stops the region at its next start, until an operator repairs the register; one that no
// register can have written stops nothing.
func TestForgedCopy(t *testing.T) {
	const unit = "default/us"
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s := newSite(t, "us", 1)
	s.lease = shortLease()
	n := startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: t.TempDir()})
	a, stop := s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
	until(t, patience, "grant", granted(a, unit))
	forge := func(key, value string) {
		t.Helper()
		if err := s.client().ProduceSync(ctx, &kgo.Record{Topic: mirror.OwnershipTopic, Key: []byte(key), Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	record := func(epoch, revision uint64) string {
		return fmt.Sprintf(`{"v":1,"revision":%d,"record":{"v":1,"unit":"default/us","epoch":%d,"owner":"us","state":"ACTIVE","last":"us","by":"us","prev":1,`+
			`"epochs":[{"epoch":17,"owner":"us","ended":true,"cut":[{"topic":"t","incarnation":0,"offsets":[1000000]}]},{"epoch":%d,"owner":"us"}]}}`, revision, epoch, epoch)
	}
	forge(unit, record(1<<60, 20))
	forge("default/eu", record(65, 20))
	forge(unit, record(65, 1<<60))
	stop()
	a, stop = s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
	until(t, patience, "grant beside what nobody can have written", granted(a, unit))

	forge(unit, record(65, 40))
	stop()
	a, _ = s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
	until(t, patience, "alarm", func() bool { return a.Status().State == "regressed" })
	repaired(t, ctx, a)
	unfenced(t, ctx, a, "us")
	until(t, patience, "grant after the repair", granted(a, unit))
	g, _ := a.Grant(unit)
	for _, e := range a.Tokens().Units[unit].Record.Epochs {
		for _, x := range append(e.Start, e.Cut...) {
			if x.Offsets[0] > 7 {
				t.Errorf("epoch %d has offset %d", e.Epoch, x.Offsets[0])
			}
		}
	}
	if g.Epoch <= 65 {
		t.Errorf("granted in epoch %d", g.Epoch)
	}
}
