package embed_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/geogate/geogate/internal/embed"
)

// TestReplacedServer: a server that is gone for good is taken out of the cluster, and one
// with another name gets its copy of a stream.
func TestReplacedServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	names := []string{"ctl-0", "ctl-1", "ctl-2", "ctl-3"}
	at := make(map[string]string)
	for _, n := range names {
		at[n] = freeAddress(t)
	}
	start := func(name string) *embed.NATSServer {
		c := embed.NATS{Name: name, StoreDir: t.TempDir(), ClusterListen: at[name], Secret: shared}
		for _, other := range names[:3] {
			if other != name {
				c.Routes = append(c.Routes, "nats-route://"+at[other])
			}
		}
		s, err := embed.StartNATS(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	servers := map[string]*embed.NATSServer{}
	for _, n := range names[:3] {
		servers[n] = start(n)
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for tick := time.NewTicker(50 * time.Millisecond); !ok(); {
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("%s does not come about", what)
			}
		}
	}
	running := func(at *embed.NATSServer) (list []string) {
		short, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		peers, err := at.Peers(short)
		if err != nil {
			return nil
		}
		for _, p := range peers {
			if p.ID == embed.PeerID(p.Name) && !p.Offline {
				list = append(list, p.Name)
			}
		}
		slices.Sort(list)
		return list
	}
	js := connect(t, servers["ctl-0"])
	until("a cluster of three", func() bool { return slices.Equal(running(servers["ctl-0"]), names[:3]) })
	until("a stream", func() bool {
		short, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := js.CreateStream(short, jetstream.StreamConfig{Name: "OWN", Subjects: []string{"own.>"}, Replicas: 3})
		return err == nil
	})
	if _, err := js.Publish(ctx, "own.a", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	if err := servers["ctl-2"].Close(); err != nil {
		t.Fatal(err)
	}
	servers["ctl-3"] = start("ctl-3")
	until("the new one's joining", func() bool { return slices.Contains(running(servers["ctl-1"]), "ctl-3") })
	until("the old one's removal", func() bool { return servers["ctl-1"].RemovePeer(ctx, "ctl-2") == nil })
	until("a third copy", func() bool {
		short, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		st, err := js.Stream(short, "OWN")
		if err != nil {
			return false
		}
		c := st.CachedInfo().Cluster
		current := c.Leader != ""
		for _, r := range c.Replicas {
			current = current && r.Current && r.Name != "ctl-2"
		}
		return current && len(c.Replicas) == 2
	})
	if peers, err := servers["ctl-0"].Peers(ctx); err != nil || len(peers) != 3 || slices.ContainsFunc(peers, func(p embed.Peer) bool { return p.Name == "ctl-2" }) {
		t.Errorf("the cluster has %+v, %v", peers, err)
	}
}

// TestHandOver: a server that is about to stop hands over what it leads, the cluster and
// the stream, and writes go on.
func TestHandOver(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	const stream = "OWN"
	names := []string{"ctl-0", "ctl-1", "ctl-2"}
	at := make(map[string]string)
	for _, n := range names {
		at[n] = freeAddress(t)
	}
	var servers []*embed.NATSServer
	for _, name := range names {
		c := embed.NATS{Name: name, StoreDir: t.TempDir(), ClusterListen: at[name], Secret: shared}
		for _, other := range names {
			if other != name {
				c.Routes = append(c.Routes, "nats-route://"+at[other])
			}
		}
		s, err := embed.StartNATS(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		servers = append(servers, s)
	}
	js := connect(t, servers[0])
	again := func(what string, try func(context.Context) error) {
		t.Helper()
		for {
			short, cancel := context.WithTimeout(ctx, 10*time.Second)
			err := try(short)
			cancel()
			if err == nil {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	again("create the stream", func(ctx context.Context) error {
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{"own.>"}, Replicas: 3})
		return err
	})
	leader := func() *embed.NATSServer {
		for ctx.Err() == nil {
			for _, s := range servers {
				if s.Leads(stream) {
					return s
				}
			}
			<-time.After(10 * time.Millisecond)
		}
		t.Fatal("no leader")
		return nil
	}
	first := leader()
	if err := first.HandOver(ctx, stream); err != nil {
		t.Fatal(err)
	}
	if first.Leads(stream) {
		t.Error("the server still leads the stream")
	}
	if next := leader(); next == first {
		t.Error("the server leads the stream again")
	}
	again("write after it", func(ctx context.Context) error { _, err := js.Publish(ctx, "own.x", nil); return err })
	if err := first.HandOver(ctx, stream); err != nil {
		t.Errorf("a server that leads nothing: %v", err)
	}
}
