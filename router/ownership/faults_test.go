package ownership_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/register"
	"github.com/geogate/geogate/testbench/natscluster"
)

func quorum(d *natscluster.Dialer) register.Config {
	return register.Config{Dialer: d, Replicas: natscluster.Size}
}

// keptHeld fails if a grant is not held at any moment until stop is called.
func keptHeld(t *testing.T, a *ownership.Client, unit string, g ownership.Grant) (stop func()) {
	t.Helper()
	end := watchHeld(a, unit, g)
	return func() {
		t.Helper()
		if lost := end(); !lost.IsZero() {
			t.Errorf("%s is not held any more", unit)
		}
	}
}

// watchHeld looks whether a grant is held until end is called, which tells when it was
// first seen not to be: zero if it was held at all times.
func watchHeld(a *ownership.Client, unit string, g ownership.Grant) (end func() (lost time.Time)) {
	done, ended := make(chan struct{}), make(chan time.Time, 1)
	go func() {
		for {
			select {
			case <-done:
				ended <- time.Time{}
				return
			case <-time.After(2 * time.Millisecond):
			}
			if !a.Holds(unit, g) {
				ended <- time.Now()
				return
			}
		}
	}()
	return sync.OnceValue(func() time.Time { close(done); return <-ended })
}

func unproven(a *ownership.Client, unit string) func() bool {
	return func() bool { _, err := a.Grant(unit); return errors.Is(err, ownership.ErrUnproven) }
}

func refused(a *ownership.Client, unit string) func() bool {
	return func() bool {
		var foreign *ownership.NotOwnerError
		_, err := a.Grant(unit)
		return errors.As(err, &foreign)
	}
}

// follower is a server that does not lead the register.
func follower(t *testing.T, c *natscluster.Cluster) int {
	t.Helper()
	until(t, patience, "leader", func() bool { return c.Leader(streamName) >= 0 })
	return (c.Leader(streamName) + 1) % natscluster.Size
}

// TestBlindInstanceMoves: an instance whose server is cut off from the others
// finds out, goes to another server and keeps its lease.
func TestBlindInstanceMoves(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	dial(t, c, time.Second, 0) // the stream is there, and has a leader
	i := follower(t, c)
	s := newSite(t, "us", 1)
	d := c.Dialer(i, (i+1)%natscluster.Size, (i+2)%natscluster.Size)
	a, _ := s.start(quorum(d))
	const unit = "default/us"
	until(t, patience, "grant", granted(a, unit))
	until(t, patience, "followed watch", func() bool { return !a.Tokens().WatchSilent })
	g, err := a.Grant(unit)
	if err != nil || d.At() != i {
		t.Fatalf("granted %+v, %v, at server %d", g, err, d.At())
	}
	stop := keptHeld(t, a, unit, g)
	defer stop()
	c.Isolate(i)
	began := time.Now()
	// Three renewals are the core's bound, which TestSilence holds it to by its own
	// clock; beside a load, the instance itself runs late.
	until(t, patience, "move", func() bool { return d.At() != i })
	t.Logf("found blind and moved after %v", time.Since(began))
	// A new watch needs the leader of all streams, which may be the one cut off.
	until(t, patience, "end of blindness", func() bool { return !a.Tokens().WatchSilent })
	t.Logf("sees again after %v", time.Since(began))
	until(t, patience, "full lease", func() bool { left, _ := a.LeaseLeft(unit); return left > s.lease.Duration-s.lease.Margin-time.Second })
}

// TestLeaderLossKeepsLease: the abrupt end of the server that leads the register
// costs nobody a lease if another leads in time; if not, the lease ends when it has to
// and not before, and comes back under its epoch.
func TestLeaderLossKeepsLease(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("an election takes 4 to 9 s")
	}
	c := startCluster(t)
	dial(t, c, time.Second, 0)
	i := follower(t, c)
	s := newSite(t, "us", 1)
	a, _ := s.start(quorum(c.Dialer(i)))
	const unit = "default/us"
	until(t, patience, "grant", granted(a, unit))
	g, err := a.Grant(unit)
	if err != nil {
		t.Fatal(err)
	}
	end := watchHeld(a, unit, g)
	defer end()
	lead := c.Leader(streamName)
	if lead == i {
		t.Skip("the lead has moved to the instance's own server")
	}
	began := time.Now()
	left, ok := a.LeaseLeft(unit)
	if !ok {
		t.Fatal("no lease before anything has happened")
	}
	if err := c.Stop(lead, false); err != nil {
		t.Fatal(err)
	}
	until(t, patience, "new leader", func() bool { n := c.Leader(streamName); return n >= 0 && n != lead })
	led := time.Since(began)
	until(t, patience, "renewed lease", func() bool { left, _ := a.LeaseLeft(unit); return left > s.lease.Duration-s.lease.Margin-time.Second })
	fresh := time.Since(began)
	lost := end()
	t.Logf("a leader after %v, a fresh lease after %v; the one before had %v left", led, fresh, left)
	// An election of which both candidates want the vote begins again, each time with 4 to 9 s.
	switch after := lost.Sub(began); {
	case lost.IsZero():
	case after < left:
		t.Errorf("the lease was lost after %v, and had %v left", after, left)
	case led+s.lease.Renew+s.lease.Timeout < left:
		t.Errorf("the lease was lost after %v, although a leader was there after %v", after, led)
	}
	until(t, patience, "grant", granted(a, unit))
	if again, err := a.Grant(unit); err != nil || again.Epoch != g.Epoch {
		t.Errorf("granted %+v, %v after %+v", again, err, g)
	}
}

// cutOff is a region that is cut off from the register, and another one that is not.
type cutOff struct {
	c       *natscluster.Cluster
	alone   int // the server that is cut off, with eu's instance
	us, eu  *ownership.Client
	grant   ownership.Grant
	cutAt   time.Time
	longest time.Duration // for which eu may believe in its lease
}

const cutOffUnit = "default/eu"

// cutOffRegion cuts eu off while it holds its unit. Until the test ends, us must not
// lose its own.
func cutOffRegion(t *testing.T) *cutOff {
	t.Helper()
	c := startCluster(t)
	dial(t, c, time.Second, 0)
	i := follower(t, c)
	us, eu := newSite(t, "us", 1), newSite(t, "eu", 2)
	us.lease, eu.lease = shortLease(), shortLease()
	x := &cutOff{c: c, alone: i, longest: eu.lease.Duration - eu.lease.Margin}
	x.us, _ = us.start(quorum(c.Dialer((i+1)%natscluster.Size, (i+2)%natscluster.Size)))
	x.eu, _ = eu.start(quorum(c.Dialer(i)))
	until(t, patience, "grant of us", granted(x.us, "default/us"))
	until(t, patience, "grant of eu", granted(x.eu, cutOffUnit))
	x.grant, _ = x.eu.Grant(cutOffUnit)
	own, _ := x.us.Grant("default/us")
	t.Cleanup(keptHeld(t, x.us, "default/us", own))
	c.Isolate(i)
	x.cutAt = time.Now()
	return x
}

// TestCutOff: an instance that is cut off from the register stops at its lease's
// end, says that nothing is proven, and goes on under the same epoch when the line
// is back.
func TestCutOff(t *testing.T) {
	t.Parallel()
	x := cutOffRegion(t)
	until(t, x.longest+time.Second, "end of the lease", unproven(x.eu, cutOffUnit))
	t.Logf("stopped %v after the cut", time.Since(x.cutAt))
	if x.eu.Holds(cutOffUnit, x.grant) {
		t.Error("a grant is held over the lease's end")
	}
	until(t, patience, "count of the soft fence", func() bool { k := x.eu.Tokens(); return k.SoftFenced && k.SoftFences == 1 })
	x.c.Rejoin(x.alone)
	until(t, patience, "grant after the line is back", granted(x.eu, cutOffUnit))
	if again, _ := x.eu.Grant(cutOffUnit); again.Epoch != x.grant.Epoch || x.eu.Tokens().SoftFenced {
		t.Errorf("granted %+v after %+v", again, x.grant)
	}
}

// TestCutOffWhileFenced: an instance whose region is fenced while it is cut off, so
// that nothing tells it, has stopped before the fence is answered, and says so soon
// after the line is back.
func TestCutOffWhileFenced(t *testing.T) {
	t.Parallel()
	x := cutOffRegion(t)
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	answer := make(chan ownership.Result, 1)
	go func() {
		answer <- fenceEU(ctx, x.us, "cut off")
	}()
	until(t, x.longest+time.Second, "end of the lease", func() bool { return !x.eu.Holds(cutOffUnit, x.grant) })
	held := time.Since(x.cutAt)
	r := <-answer
	if r.Code != ownership.ResultLoss {
		t.Errorf("fence: %+v", r)
	}
	if _, err := x.eu.Grant(cutOffUnit); !errors.Is(err, ownership.ErrUnproven) {
		t.Errorf("an instance that cannot know of its fence says %v", err)
	}
	t.Logf("stopped %v after the cut; the fence was answered after %v", held, time.Since(x.cutAt))
	x.c.Rejoin(x.alone)
	began := time.Now()
	until(t, patience, "joined server", func() bool { return x.c.Server(x.alone).Ready() == nil })
	joined := time.Since(began)
	until(t, patience, "refusal", refused(x.eu, cutOffUnit))
	t.Logf("the server joined after %v, the refusal came after %v", joined, time.Since(began))
}

// TestRolledBack: a register that has forgotten an acknowledged fence is not
// believed, whoever remembers it: the mark on disk, or, when that was rolled back
// as well, the region's Kafka. No write is taken.
func TestRolledBack(t *testing.T) {
	for name, markToo := range map[string]bool{"register": false, "register and mark": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, kept := t.TempDir(), t.TempDir()
			server := func() *embed.NATSServer {
				return startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: dir})
			}
			s := newSite(t, "us", 1)
			s.lease = shortLease()
			const unit = "default/us"
			n := server()
			a, stop := s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
			until(t, patience, "grant", granted(a, unit))
			until(t, patience, "mark", func() bool { m, err := ownership.LoadMark(s.dir); return err == nil && m.Epochs[unit] == 17 })
			stop()
			n.Close()
			if err := os.CopyFS(filepath.Join(kept, "nats"), os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			old, err := ownership.LoadMark(s.dir)
			if err != nil {
				t.Fatal(err)
			}

			n = server()
			a, stop = s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
			until(t, patience, "grant", granted(a, unit))
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if r := ask(ctx, a, ownership.Command{Verb: ownership.VerbFence, Unit: unit, Reason: "test"}); r.Code != ownership.ResultDone {
				t.Fatalf("fence: %+v", r)
			}
			until(t, patience, "testimony of the fence", func() bool {
				_, epochs := s.testimonies(unit)
				return len(epochs) > 0 && epochs[len(epochs)-1] == 33
			})
			until(t, patience, "mark of the fence", func() bool { m, err := ownership.LoadMark(s.dir); return err == nil && m.Epochs[unit] == 33 })
			stop()
			n.Close()

			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(kept, "nats"))); err != nil {
				t.Fatal(err)
			}
			if markToo {
				if err := ownership.SaveMark(s.dir, old); err != nil {
					t.Fatal(err)
				}
			}
			n = server()
			a, _ = s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
			until(t, patience, "alarm", func() bool {
				if _, err := a.Grant(unit); err == nil {
					t.Fatal("a fenced unit is granted by a register that has forgotten the fence")
				}
				return a.Status().State == "regressed"
			})
			t.Log(a.Status().Regressed)
			if r := ask(ctx, a, ownership.Command{Verb: ownership.VerbUnfence, Unit: unit}); r.Code != ownership.ResultRegressed {
				t.Errorf("unfence: %+v", r)
			}
			if metric(t, s, "geogate_ownership_regressed") != 1 {
				t.Error("the metrics do not say that the register went backwards")
			}
			if p := a.Act(ctx, ownership.RegisterAct{Verb: ownership.RegisterRepair, DryRun: true}); p.Code != ownership.ResultDone || len(p.Steps) < 3 || a.Status().State != "regressed" {
				t.Errorf("repair, dry: %+v, and the register is %s", p, a.Status().State)
			}
			repaired(t, ctx, a)
			unfenced(t, ctx, a, "us")
			if g, err := a.Grant(unit); err == nil {
				t.Errorf("a fenced unit is granted in epoch %d", g.Epoch)
			}
			if r := ask(ctx, a, ownership.Command{Verb: ownership.VerbUnfence, Unit: unit}); r.Code != ownership.ResultDone {
				t.Errorf("unfence of the unit: %+v", r)
			}
			until(t, patience, "grant", granted(a, unit))
			if g, _ := a.Grant(unit); g.Epoch <= 33 {
				t.Errorf("granted in epoch %d", g.Epoch)
			}
		})
	}
}

// TestDeletedRegister: a stream that was deleted under a running instance is not
// made again by it; the instance stops at its lease's end, and its next life does
// not believe a new stream.
func TestDeletedRegister(t *testing.T) {
	t.Parallel()
	n := startNATS(t, embed.NATS{Name: "ctl", StoreDir: t.TempDir()})
	s := newSite(t, "us", 1)
	s.lease = shortLease()
	const unit = "default/us"
	a, stop := s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
	until(t, patience, "grant", granted(a, unit))
	until(t, patience, "mark", func() bool { m, err := ownership.LoadMark(s.dir); return err == nil && m.Epochs[unit] == 17 })
	js, ctx := streams(t, nats.InProcessServer(n.Dialer())), context.Background()
	must(t, js.DeleteStream(ctx, streamName))
	until(t, s.lease.Duration, "end of the lease", unproven(a, unit))
	until(t, patience, "report", func() bool { return a.Status().State == "unreachable" && a.Tokens().WatchSilent })
	if _, err := js.Stream(ctx, streamName); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("the register after it was deleted: %v", err)
	}
	stop()
	a, _ = s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
	until(t, patience, "alarm", func() bool { return a.Status().State == "regressed" })
	if _, err := a.Grant(unit); !errors.Is(err, ownership.ErrUnproven) {
		t.Errorf("granted with %v", err)
	}
}

// TestForgottenQuorum: one server's disk is rolled back while another was stopped,
// so that the two of them agree on a past in which a fence, acknowledged by a
// majority, has not happened. An instance that knows of it does not write.
func TestForgottenQuorum(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three servers start twice")
	}
	c := startCluster(t)
	us, eu := newSite(t, "us", 1), newSite(t, "eu", 2)
	us.lease, eu.lease = shortLease(), shortLease()
	const unit = "default/eu"
	a, stopA := us.start(quorum(c.Dialer(0, 2)))
	b, stopB := eu.start(quorum(c.Dialer(2, 0)))
	until(t, patience, "grant of us", granted(a, "default/us"))
	until(t, patience, "grant of eu", granted(b, unit))

	// Server 0 as it is now comes back later; server 1 learns nothing from now on.
	kept := filepath.Join(t.TempDir(), "kept")
	must(t, c.Stop(0, true))
	must(t, c.Keep(0, kept))
	must(t, c.Restart(0))
	until(t, patience, "three servers", func() bool { return a.Status().Reachable == 3 })
	must(t, c.Stop(1, true))
	until(t, patience, "register without server 1", func() bool { return a.Status().State == "ok" && granted(b, unit)() })
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	if r := ask(ctx, a, ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "drill"}); r.Code != ownership.ResultDone {
		t.Fatalf("fence: %+v", r)
	}
	until(t, patience, "mark of the fence", func() bool {
		m, err := ownership.LoadMark(eu.dir)
		return err == nil && m.Epochs[unit] == event.Epoch(33)
	})
	for _, region := range []*site{us, eu} { // what a region's copy lacks it cannot repair
		until(t, patience, "copy of the fence in "+region.region, func() bool {
			_, epochs := region.testimonies(unit)
			return slices.Contains(epochs, event.Epoch(33))
		})
	}
	stopA()
	stopB()
	must(t, c.Stop(0, false))
	must(t, c.Stop(2, false))
	must(t, c.Bring(0, kept))
	must(t, c.Restart(0))
	must(t, c.Restart(1))
	b, _ = eu.start(quorum(c.Dialer(0, 1)))
	// Two servers that both lag may need several elections on a loaded machine.
	until(t, 3*time.Minute, "alarm", func() bool {
		if g, err := b.Grant(unit); err == nil {
			t.Fatalf("a fenced unit is granted in epoch %d by servers that have forgotten the fence", g.Epoch)
		}
		return b.Status().State == "regressed"
	})
	t.Log(b.Status().Regressed)

	// Each region repairs from its own Kafka; then eu writes again, in a later epoch.
	a, _ = us.start(quorum(c.Dialer(1, 0)))
	ctx, cancel = context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	repaired(t, ctx, b)
	repaired(t, ctx, a)
	unfenced(t, ctx, a, "eu")
	until(t, patience, "grant of eu", granted(b, unit))
	if g, _ := b.Grant(unit); g.Epoch <= 33 {
		t.Errorf("granted in epoch %d", g.Epoch)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// metric reads one sample of a site's metrics, -1 if there is none. Labels are
// name and value by turns.
func metric(t testing.TB, s *site, name string, labels ...string) float64 {
	t.Helper()
	families, err := s.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	next:
		for _, m := range f.GetMetric() {
			have := make(map[string]string)
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			for i := 0; i < len(labels); i += 2 {
				if have[labels[i]] != labels[i+1] {
					continue next
				}
			}
			switch {
			case m.GetGauge() != nil:
				return m.GetGauge().GetValue()
			case m.GetCounter() != nil:
				return m.GetCounter().GetValue()
			case m.GetHistogram() != nil:
				return float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return -1
}

// fenceEU has eu fenced.
func fenceEU(ctx context.Context, c *ownership.Client, reason string) ownership.Result {
	return ask(ctx, c, ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: reason})
}

// ask has a command carried out. It asks again while the instance answers that it has
// not read the register to its end: a server that lags for a moment, or an election,
// makes it read again.
func ask(ctx context.Context, c *ownership.Client, command ownership.Command) ownership.Result {
	for {
		r := c.Ask(ctx, command)
		if r.Code != ownership.ResultUnreachable || ctx.Err() != nil {
			return r
		}
		pause(ctx, 100*time.Millisecond)
	}
}
