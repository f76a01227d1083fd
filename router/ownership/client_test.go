package ownership_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/mirror"
	"github.com/geogate/geogate/router/ownership/register"
	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/natscluster"
)

// logs is a region's logs as the client sees them: one partition for every
// unit.
type logs struct{ end int64 }

func (l logs) extent() []ownership.Extent {
	return []ownership.Extent{{Topic: "t", Offsets: []int64{l.end}}}
}

func (l logs) Ends(context.Context, string) ([]ownership.Extent, error) { return l.extent(), nil }
func (l logs) Settle(context.Context, string) error                     { return nil }
func (l logs) Applied(context.Context, string, string) ([]ownership.Extent, error) {
	return []ownership.Extent{{Topic: "t", Offsets: []int64{l.end - 1}}}, nil
}

func (l logs) Judged(context.Context, string) ([]ownership.JudgedLog, error) { return nil, nil }

func (l logs) CaughtUp(context.Context) (string, error) { return "", nil }

// site is one region with its Kafka.
type site struct {
	t      testing.TB
	region string
	id     event.RegionID
	seeds  []string
	dir    string
	lease  ownership.LeaseConfig
	logs   ownership.UnitLogs
	// regions are the deployment's, as this instance knows them.
	regions []router.Region
	reg     *prometheus.Registry
	log     *slog.Logger // nil discards
}

// shortLease are the shortest times that are allowed.
func shortLease() ownership.LeaseConfig {
	return ownership.LeaseConfig{Duration: 13 * time.Second, Margin: time.Second, Renew: time.Second, Timeout: time.Second}
}

func newSite(t testing.TB, region string, id event.RegionID) *site {
	t.Helper()
	k, err := embed.StartKafka(embed.Kafka{Listen: "127.0.0.1:0", DataDir: filepath.Join(t.TempDir(), "kafka"), Unsynced: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return siteAt(t, region, id, k.Seeds())
}

// siteAt is a region with a Kafka that runs already.
func siteAt(t testing.TB, region string, id event.RegionID, seeds []string) *site {
	t.Helper()
	s := &site{
		t: t, region: region, id: id, seeds: seeds, dir: t.TempDir(), regions: twoRegions,
		lease: ownership.DefaultLease(), logs: logs{end: 7}, reg: prometheus.NewRegistry(),
	}
	cl := s.client()
	for _, topic := range []string{mirror.OwnershipTopic, mirror.OwnersTopic} {
		if _, err := kadm.NewClient(cl).CreateTopic(context.Background(), 1, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *site) client() *kgo.Client {
	s.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.seeds...))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(cl.Close)
	return cl
}

var twoRegions = []router.Region{{Name: "us", ID: 1}, {Name: "eu", ID: 2}}

// start runs a client; stop ends it.
func (s *site) start(nats register.Config) (a *ownership.Client, stop func()) {
	s.t.Helper()
	topology, err := router.NewTopology(s.regions...)
	if err != nil {
		s.t.Fatal(err)
	}
	cl, log := s.client(), slog.New(slog.DiscardHandler)
	if s.log != nil {
		log = s.log
	} else if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("region", s.region)
	}
	nats.Name, nats.Timeout, nats.Logger = s.region, s.lease.Timeout, log
	a, err = ownership.NewClient(ownership.ClientConfig{
		Region: s.region, ID: s.id, Regions: topology, Instance: s.region + "-0", Policy: &ownership.Policy{},
		Lease: s.lease, DataDir: s.dir, Voters: nats.Replicas, Logs: s.logs, Logger: log,
		Orphans: func() map[string]uint64 { return map[string]uint64{"default/" + s.region: 3} },
		Dial:    func(h ownership.Handlers) (ownership.Register, error) { return register.Dial(nats, h) },
		Mirror: mirror.New(mirror.Config{
			Region: s.region, Client: cl, Topics: txn.NewTopics(cl), Logger: log,
		}),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.reg = prometheus.NewRegistry()
	s.reg.MustRegister(a)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("client of %s ended with %v", s.region, err)
		}
	}
	s.t.Cleanup(stop)
	return a, stop
}

// patience is how long a test waits for what must come about: only a hang takes longer,
// also where a busy machine elects leaders again and again.
const patience = 3 * time.Minute

// until waits for a condition, and looks once more when the limit has passed: a test
// that did not run for that long has seen nothing.
func until(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; <-time.After(10 * time.Millisecond) {
		late := time.Now().After(deadline)
		if ok() {
			return
		}
		if late {
			t.Fatalf("no %s within %v", what, limit)
		}
	}
}

func granted(a *ownership.Client, unit string) func() bool {
	return func() bool { _, err := a.Grant(unit); return err == nil }
}

func startNATS(t testing.TB, c embed.NATS) *embed.NATSServer {
	t.Helper()
	n, err := embed.StartNATS(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// testimonies reads the second witness: revisions and epochs of a unit.
func (s *site) testimonies(unit string) (revisions []uint64, epochs []event.Epoch) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.seeds...), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{mirror.OwnershipTopic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		s.t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, mirror.OwnershipTopic)
	if err != nil {
		s.t.Fatal(err)
	}
	end, _ := ends.Lookup(mirror.OwnershipTopic, 0)
	for next := int64(0); next < end.Offset-1 && ctx.Err() == nil; { // the last is a marker
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if string(r.Key) != unit {
				return
			}
			revision, u, err := mirror.ParseTestimony(r.Value)
			if err != nil {
				s.t.Fatalf("testimony at %d: %v", r.Offset, err)
			}
			revisions, epochs = append(revisions, revision), append(epochs, u.Epoch)
		})
	}
	return revisions, epochs
}

// cutOf is where an epoch of a unit was cut; nil: nowhere yet.
func cutOf(a *ownership.Client, unit string, epoch event.Epoch) []ownership.Extent {
	for _, e := range a.Tokens().Units[unit].Record.Epochs {
		if e.Epoch == epoch && e.Ended {
			return e.Cut
		}
	}
	return nil
}

// TestSolo: one embedded server. The region claims its units, is fenced with its
// own consent, and its next life goes on under the same epoch after an unfence.
func TestSolo(t *testing.T) {
	s := newSite(t, "us", 1)
	n := startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: t.TempDir()})
	nats := register.Config{Dialer: n.Dialer(), Replicas: 1}
	a, stop := s.start(nats)
	const unit = "default/us"
	until(t, patience, "grant", granted(a, unit))
	g, err := a.Grant(unit)
	if err != nil || g.Epoch != 17 || !a.Holds(unit, g) {
		t.Fatalf("granted %+v, %v", g, err)
	}
	if left, ok := a.LeaseLeft(unit); !ok || left > 18*time.Second {
		t.Errorf("%v of the lease are left, %v", left, ok)
	}
	if st := a.Status(); st.State != "ok" || st.Voters != 1 || st.Reachable != 1 {
		t.Errorf("register is %+v", st)
	}
	for _, m := range []struct {
		name   string
		labels []string
		least  float64
		most   float64
	}{
		{"lease_seconds", nil, 1, 18},
		{"soft_fenced", nil, 0, 0},
		{"soft_fences_total", nil, 0, 0},
		{"register_up", nil, 1, 1},
		{"register_voters", nil, 1, 1},
		{"register_voters_reachable", nil, 1, 1},
		{"register_write_gap_seconds", nil, 0, 10},
		{"watch_blind", nil, 0, 0},
		{"regressed", nil, 0, 0},
		{"unit_state", []string{"unit", unit, "state", "ACTIVE"}, 1, 1},
		{"unit_state", []string{"unit", unit, "state", "FENCED"}, 0, 0},
		{"unit_held", []string{"unit", unit}, 1, 1},
		{"unit_epoch", []string{"unit", unit}, 17, 17},
		{"orphans", []string{"unit", unit}, 3, 3},
		{"renewals_total", []string{"result", "ok"}, 1, 5},
		{"renewals_total", []string{"result", "unknown"}, 0, 5},
		{"register_write_seconds", []string{"result", "ok"}, 2, 20},
		{"broadcasts_received_total", []string{"result", "fresh"}, 0, 0},
		{"rewatches_total", nil, 0, 0},
		{"pauses_total", nil, 0, 0},
	} {
		if v := metric(t, s, "geogate_ownership_"+m.name, m.labels...); v < m.least || v > m.most {
			t.Errorf("geogate_ownership_%s%v is %v, want %v to %v", m.name, m.labels, v, m.least, m.most)
		}
	}
	// The other life of the process proves the same epoch again.
	stop()
	a, _ = s.start(nats)
	until(t, patience, "grant after a restart", granted(a, unit))
	if again, _ := a.Grant(unit); again.Epoch != 17 || a.Holds(unit, g) && again != g {
		t.Errorf("granted %+v after %+v", again, g)
	}
	g, _ = a.Grant(unit)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r := ask(ctx, a, ownership.Command{Verb: ownership.VerbFence, Region: "us", Reason: "planned maintenance"})
	if r.Code != ownership.ResultDone || len(r.Units) != 1 || r.Units[0].Cut != ownership.CutEnd {
		t.Fatalf("fence: %+v", r)
	}
	var foreign *ownership.NotOwnerError
	if _, err := a.Grant(unit); !errors.As(err, &foreign) || foreign.Error() != "default/us is fenced since epoch 33 (us: planned maintenance)" {
		t.Errorf("fenced unit gives %v", err)
	}
	if a.Holds(unit, g) {
		t.Error("a grant is held over a fence")
	}
	if cut, ok := ownership.Offset(cutOf(a, unit, 17), "t", 0, 0); !ok || cut != 7 {
		t.Errorf("cut %d, %v", cut, ok)
	}
	if r := ask(ctx, a, ownership.Command{Verb: ownership.VerbUnfence, Region: "us"}); r.Code != ownership.ResultDone {
		t.Errorf("unfence: %+v", r)
	}
	if _, err := a.Grant(unit); !errors.Is(err, ownership.ErrUnproven) {
		t.Errorf("unit that is being claimed gives %v", err)
	}
	// The audit has every revision once, in order.
	until(t, patience, "audit of the fence", func() bool {
		_, epochs := s.testimonies(unit)
		return len(epochs) > 0 && epochs[len(epochs)-1] == 33
	})
	revisions, epochs := s.testimonies(unit)
	for i := 1; i < len(revisions); i++ {
		if revisions[i] <= revisions[i-1] || epochs[i] < epochs[i-1] {
			t.Errorf("audit has revisions %v, epochs %v", revisions, epochs)
		}
	}
}

// TestRegression: a register that has forgotten is not believed, whether the file
// or the region's Kafka remembers.
func TestRegression(t *testing.T) {
	for name, forget := range map[string]func(*site){
		"mark":    func(*site) {},
		"witness": func(s *site) { s.dir = s.t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "us", 1)
			n := startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: t.TempDir()})
			a, stop := s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
			until(t, patience, "grant", granted(a, "default/us"))
			until(t, patience, "testimony", func() bool { r, _ := s.testimonies("default/us"); return len(r) > 0 })
			stop()
			forget(s)
			wiped := startNATS(t, embed.NATS{Name: "ctl-us-2", StoreDir: t.TempDir()})
			a, _ = s.start(register.Config{Dialer: wiped.Dialer(), Replicas: 1})
			until(t, patience, "alarm", func() bool { return a.Status().State == "regressed" })
			if _, err := a.Grant("default/us"); !errors.Is(err, ownership.ErrUnproven) {
				t.Errorf("granted with %v", err)
			}
			if r := a.Ask(context.Background(), ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "x"}); r.Code != ownership.ResultRegressed {
				t.Errorf("fence: %+v", r)
			}
		})
	}
}

// freeAddresses are loopback addresses that no outgoing connection takes.
func freeAddresses(t testing.TB, n int) []string {
	t.Helper()
	var out []string
	for len(out) < n {
		port, err := apache.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if at := fmt.Sprint("127.0.0.1:", port); !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}

func splitAddress(t *testing.T, addr string) (host string, port int) {
	t.Helper()
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	if port, err = strconv.Atoi(text); err != nil {
		t.Fatal(err)
	}
	return host, port
}

// TestQuorum: three servers, two regions and a witness. The other region's gateway
// fences a region that answers, by broadcast and watch, and sees its cut; the loss
// of the witness stops nobody.
func TestQuorum(t *testing.T) {
	t.Parallel()
	at := freeAddresses(t, 3)
	servers := make([]*embed.NATSServer, 3)
	for i, name := range []string{"ctl-us", "ctl-eu", "ctl-wit"} {
		var routes []string
		for j, other := range at {
			if j != i {
				routes = append(routes, "nats-route://"+other)
			}
		}
		servers[i] = startNATS(t, embed.NATS{Name: name, StoreDir: t.TempDir(), ClusterListen: at[i], Routes: routes, Secret: natscluster.Secret()})
	}
	us, eu := newSite(t, "us", 1), newSite(t, "eu", 2)
	a, _ := us.start(register.Config{Dialer: servers[0].Dialer(), Replicas: 3})
	b, _ := eu.start(register.Config{Dialer: servers[1].Dialer(), Replicas: 3})
	until(t, patience, "grant of us", granted(a, "default/us"))
	until(t, patience, "grant of eu", granted(b, "default/eu"))
	g, _ := b.Grant("default/eu")
	until(t, patience, "sight of eu's unit in us", func() bool { _, ok := a.Tokens().Units["default/eu"]; return ok })

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	began := time.Now()
	done := make(chan ownership.Result, 1)
	go func() {
		done <- ask(ctx, a, ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "drill"})
	}()
	until(t, patience, "end of eu's grant", func() bool { return !b.Holds("default/eu", g) })
	t.Logf("eu stopped %v after the command", time.Since(began))
	r := <-done
	if r.Code != ownership.ResultDone || fmt.Sprint(r.Units) != "[{default/eu 33 end}]" {
		t.Errorf("fence: %+v", r)
	}
	if _, err := a.Grant("default/us"); err != nil {
		t.Errorf("us lost its own unit: %v", err)
	}
	if err := servers[2].Close(); err != nil {
		t.Fatal(err)
	}
	until(t, patience, "count without the witness", func() bool { st := a.Status(); return st.Voters == 3 && st.Reachable == 2 })
	r = ask(ctx, a, ownership.Command{Verb: ownership.VerbUnfence, Region: "eu"})
	if r.Code != ownership.ResultDone {
		t.Errorf("unfence without the witness: %+v", r)
	}
}
