package ownership_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/register"
	"github.com/geogate/geogate/testbench/apache"
)

// streams connects to a server and manages its streams.
func streams(t *testing.T, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect("", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// TestForeignStream: a stream of the register's name with settings that could
// lose what it has acknowledged, or answer with what is old, is not taken for the
// register, nor changed.
func TestForeignStream(t *testing.T) {
	good := func() jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: streamName, Subjects: []string{"own.>"}, Storage: jetstream.FileStorage, Replicas: 1, MaxMsgsPerSubject: 64,
			Discard: jetstream.DiscardNew, Duplicates: 10 * time.Minute, DenyDelete: true, DenyPurge: true,
		}
	}
	for name, tt := range map[string]struct {
		why  string
		make func(*jetstream.StreamConfig)
	}{
		"as ours":           {"", func(c *jetstream.StreamConfig) { c.Description = "made by hand" }},
		"direct reads":      {"direct reads", func(c *jetstream.StreamConfig) { c.AllowDirect = true }},
		"in memory":         {"in memory", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }},
		"can be purged":     {"deleted", func(c *jetstream.StreamConfig) { c.DenyPurge = false }},
		"can be deleted":    {"deleted", func(c *jetstream.StreamConfig) { c.DenyDelete = false }},
		"with an age":       {"forgets", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
		"few revisions":     {"forgets", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }},
		"short memory":      {"message ids", func(c *jetstream.StreamConfig) { c.Duplicates = 2 * time.Minute }},
		"drops the old":     {"drops old", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }},
		"takes other names": {"its subjects", func(c *jetstream.StreamConfig) { c.Subjects = []string{"own.>", "more"} }},
	} {
		t.Run(name, func(t *testing.T) {
			n := startNATS(t, embed.NATS{Name: "ctl", StoreDir: t.TempDir()})
			js, c := streams(t, nats.InProcessServer(n.Dialer())), good()
			tt.make(&c)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if _, err := js.CreateStream(ctx, c); err != nil {
				t.Fatal(err)
			}
			r, err := register.Dial(register.Config{Dialer: n.Dialer(), Replicas: 1, Timeout: time.Second, Logger: slog.New(slog.DiscardHandler)}, ownership.Handlers{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			_, err = r.Open(ctx)
			if tt.why == "" && err != nil || tt.why != "" && (!errors.Is(err, register.ErrUnfit) || !strings.Contains(err.Error(), tt.why)) {
				t.Errorf("opened with %v", err)
			}
		})
	}
	n := startNATS(t, embed.NATS{Name: "ctl", StoreDir: t.TempDir()})
	r, err := register.Dial(register.Config{Dialer: n.Dialer(), Replicas: 1, Timeout: time.Second, Logger: slog.New(slog.DiscardHandler)}, ownership.Handlers{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Open(context.Background()); err != nil {
		t.Fatal(err)
	}
	s, err := streams(t, nats.InProcessServer(n.Dialer())).Stream(context.Background(), streamName)
	if err != nil {
		t.Fatal(err)
	}
	got, want := s.CachedInfo().Config, good()
	if got.AllowDirect || got.DenyDelete != want.DenyDelete || got.DenyPurge != want.DenyPurge || got.Duplicates != want.Duplicates ||
		got.MaxMsgsPerSubject != want.MaxMsgsPerSubject || got.Discard != want.Discard || got.MaxAge != 0 || got.Storage != want.Storage {
		t.Errorf("the register was made as %+v", got)
	}
}

// TestOtherIDs: a deployment in which an id means another region than it does in
// the register writes nothing.
func TestOtherIDs(t *testing.T) {
	for name, tt := range map[string]struct {
		own router.Region
		why string
	}{
		"two ids of a name":  {router.Region{Name: "us", ID: 3}, "region us has id 1 in the register and id 3 in the configuration"},
		"two names of an id": {router.Region{Name: "asia", ID: 1}, "id 1 is region us in the register and region asia in the configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			n := startNATS(t, embed.NATS{Name: "ctl", StoreDir: t.TempDir()})
			s := newSite(t, "us", 1)
			a, stop := s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
			until(t, patience, "grant", granted(a, "default/us"))
			stop()
			other := newSite(t, tt.own.Name, tt.own.ID)
			other.regions = []router.Region{tt.own, {Name: "eu", ID: 2}}
			a, _ = other.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
			until(t, patience, "alarm", func() bool { return a.Status().State == "regressed" })
			if _, err := a.Grant("default/" + tt.own.Name); err == nil {
				t.Error("granted")
			}
			if why := a.Status().Regressed; !strings.Contains(why, tt.why) {
				t.Errorf("it says %q", why)
			}
		})
	}
}

// TestReconnectionStorm: consumers of watches that were restarted do not pile up.
func TestReconnectionStorm(t *testing.T) {
	t.Parallel()
	n := startNATS(t, embed.NATS{Name: "ctl", StoreDir: t.TempDir()})
	r, err := register.Dial(register.Config{Dialer: n.Dialer(), Replicas: 1, Timeout: time.Second, Logger: slog.New(slog.DiscardHandler)}, ownership.Handlers{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := r.Open(ctx); err != nil {
		t.Fatal(err)
	}
	js := streams(t, nats.InProcessServer(n.Dialer()))
	consumers := func() int {
		s, err := js.Stream(ctx, streamName)
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.Consumers
	}
	const storms = 40
	for i := range storms {
		id := fmt.Sprint("x", i)
		is, seq := ownership.Unknown, uint64(0)
		for is == ownership.Unknown && ctx.Err() == nil { // in vain where a busy machine answers late
			is, seq = r.Write(ctx, ownership.Write{ID: id, Subject: "own.live.us.x", Data: []byte(id)})
		}
		if is != ownership.Stored {
			t.Fatalf("write %d is %d", i, is)
		}
		wctx, stop := context.WithTimeout(ctx, 5*time.Second)
		r.Watch(wctx, seq-1, func(ownership.Seen) { stop() })
		stop()
		if i%4 == 0 {
			r.Reconnect()
			until(t, patience, "connection", func() bool { _, ok := r.Read(ctx, "own.live.us.x"); return ok })
		}
	}
	t.Logf("%d consumers after %d watches", consumers(), storms)
	until(t, patience, "end of the consumers", func() bool { return consumers() == 0 })
}

// TestBroadcastsLost: gateways whose broadcasts reach nobody, here because they
// may neither send nor hear them, still stop a fenced region, and external servers
// are reached by their addresses, another when one goes.
func TestBroadcastsLost(t *testing.T) {
	t.Parallel()
	at, urls := freeAddresses(t, 3), []string(nil)
	servers := make([]*server.Server, 3)
	for i := range servers {
		servers[i] = startExternal(t, i, at)
		urls = append(urls, fmt.Sprintf("nats://gateway:secret@%s", servers[i].Addr()))
	}
	us, eu := newSite(t, "us", 1), newSite(t, "eu", 2)
	us.lease, eu.lease = shortLease(), shortLease()
	a, _ := us.start(register.Config{URLs: urls, Replicas: 3})
	b, _ := eu.start(register.Config{URLs: urls, Replicas: 3})
	const unit = "default/eu"
	until(t, patience, "grant of us", granted(a, "default/us"))
	until(t, patience, "grant of eu", granted(b, unit))
	g, _ := b.Grant(unit)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	began := time.Now()
	r := ask(ctx, a, ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "drill"})
	took := time.Since(began)
	if r.Code != ownership.ResultDone { // it was told, and its lease was not waited for
		t.Errorf("fence: %+v after %v", r, took)
	}
	if b.Holds(unit, g) || !refused(b, unit)() {
		t.Error("eu holds what was fenced")
	}
	if n := metric(t, eu, "geogate_ownership_broadcasts_received_total", "result", "fresh"); n != 0 {
		t.Errorf("%v broadcasts came through", n)
	}
	t.Logf("fenced without a broadcast after %v", took)

	// One server goes; whoever was on it goes to another.
	own, err := a.Grant("default/us")
	if err != nil {
		t.Fatal(err)
	}
	stop := keptHeld(t, a, "default/us", own)
	defer stop()
	gone := 0
	for i, s := range servers {
		if s.NumClients() > 0 && !s.JetStreamIsStreamLeader("$G", streamName) {
			gone = i
		}
	}
	servers[gone].Shutdown()
	until(t, patience, "fresh lease", func() bool {
		left, _ := a.LeaseLeft("default/us")
		return a.Status().Reachable == 2 && left > us.lease.Duration-us.lease.Margin-us.lease.Renew
	})
}

// startExternal starts a server as an operator would run it beside the gateways,
// with a user that has no right to broadcast or to hear broadcasts.
func startExternal(t *testing.T, i int, at []string) *server.Server {
	t.Helper()
	host, port := splitAddress(t, at[i])
	opts := &server.Options{
		ServerName: fmt.Sprint("ext-", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
		SyncAlways: true, NoLog: true, NoSigs: true, JetStreamMaxMemory: 16 << 20, JetStreamMaxStore: 256 << 20,
		Cluster: server.ClusterOpts{Name: "ext", Host: host, Port: port, PoolSize: -1},
		Users: []*server.User{{Username: "gateway", Password: "secret", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"fence.>"}}, Subscribe: &server.SubjectPermission{Deny: []string{"fence.>"}},
		}}},
	}
	for j, other := range at {
		if j != i {
			opts.Routes = append(opts.Routes, server.RoutesFromStr("nats-route://"+other)...)
		}
	}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(15 * time.Second) {
		t.Fatal("external server is not ready")
	}
	return s
}

// TestWitnessOnApache: the second witness on Apache Kafka is written once for each
// revision, is read back by the next life, and is believed over a register that
// has forgotten.
func TestWitnessOnApache(t *testing.T) {
	apache.Require(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	broker, err := apache.Start(ctx, apache.Config{Dir: filepath.Join(t.TempDir(), "kafka")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { broker.Stop() })
	s := siteAt(t, "us", 1, broker.Seeds())
	s.lease = shortLease()
	dir := t.TempDir()
	n := startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: dir})
	a, stop := s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
	const unit = "default/us"
	until(t, patience, "grant", granted(a, unit))
	for _, cmd := range []ownership.Command{
		{Verb: ownership.VerbFence, Region: "us", Reason: "drill"}, {Verb: ownership.VerbUnfence, Region: "us"},
	} {
		if r := ask(ctx, a, cmd); r.Code != ownership.ResultDone {
			t.Fatalf("%s: %+v", cmd.Verb, r)
		}
	}
	until(t, patience, "grant of the next epoch", func() bool { g, err := a.Grant(unit); return err == nil && g.Epoch == 49 })
	told := func() bool { _, epochs := s.testimonies(unit); return len(epochs) > 0 && epochs[len(epochs)-1] == 49 }
	until(t, patience, "testimony of the next epoch", told)
	first, _ := s.testimonies(unit)
	stop()

	// The next life begins the watch at the register's beginning and writes nothing twice.
	a, stop = s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
	until(t, patience, "grant after a restart", granted(a, unit))
	until(t, patience, "testimony of the proof", func() bool { r, _ := s.testimonies(unit); return len(r) > len(first) })
	revisions, epochs := s.testimonies(unit)
	for i := 1; i < len(revisions); i++ {
		if revisions[i] <= revisions[i-1] || epochs[i] < epochs[i-1] {
			t.Errorf("the witness has revisions %v, epochs %v", revisions, epochs)
		}
	}
	stop()
	n.Close()

	// The register and the mark are lost; only Kafka remembers.
	s.dir = t.TempDir()
	must(t, os.RemoveAll(dir))
	n = startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: dir})
	a, _ = s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
	until(t, patience, "alarm", func() bool {
		if _, err := a.Grant(unit); err == nil {
			t.Fatal("granted by a register that Kafka knows to have forgotten")
		}
		return a.Status().State == "regressed"
	})
	t.Log(a.Status().Regressed)
}
