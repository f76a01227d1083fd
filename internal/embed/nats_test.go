package embed_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/geogate/geogate/internal/embed"
)

func connect(t *testing.T, s *embed.NATSServer) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(s.Dialer()))
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

func TestNATSKeepsStreamsOverRestart(t *testing.T) {
	ctx, dir := testContext(t), t.TempDir()
	s, err := embed.StartNATS(embed.NATS{Name: "ctl-us", StoreDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	js := connect(t, s)
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "register", Subjects: []string{"reg.>"}}); err != nil {
		t.Fatal(err)
	}
	ack, err := js.Publish(ctx, "reg.air", []byte("us"), jetstream.WithExpectLastSequencePerSubject(0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := embed.StartNATS(embed.NATS{Name: "twin", StoreDir: dir}); !errors.Is(err, embed.ErrInUse) {
		t.Fatalf("second start on the directory: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s, err = embed.StartNATS(embed.NATS{Name: "ctl-us", StoreDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	js = connect(t, s)
	st, err := js.Stream(ctx, "register")
	if err != nil {
		t.Fatal(err)
	}
	msg, err := st.GetLastMsgForSubject(ctx, "reg.air")
	if err != nil || string(msg.Data) != "us" || msg.Sequence != ack.Sequence {
		t.Fatalf("after restart %+v, %v", msg, err)
	}
	// The condition of a conditional write must know the kept revision.
	if _, err := js.Publish(ctx, "reg.air", []byte("eu"), jetstream.WithExpectLastSequencePerSubject(0)); err == nil {
		t.Fatal("conditional write against revision 0 succeeded after restart")
	}
}

func TestNATSOpensNoClientPort(t *testing.T) {
	s, err := embed.StartNATS(embed.NATS{Name: "ctl", StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if nc, err := nats.Connect(nats.DefaultURL, nats.NoReconnect()); err == nil {
		name := nc.ConnectedServerName()
		nc.Close()
		if name == "ctl" {
			t.Fatal("the embedded server answers on the default client port")
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Dialer().InProcessConn(); err == nil {
		t.Fatal("dialled a closed server")
	}
}

func TestNATSRefusesBadConfiguration(t *testing.T) {
	for name, c := range map[string]embed.NATS{
		"no store":        {Name: "a"},
		"no name":         {StoreDir: t.TempDir()},
		"lonely routes":   {Name: "a", StoreDir: t.TempDir(), Routes: []string{"nats-route://127.0.0.1:1"}},
		"cluster no port": {Name: "a", StoreDir: t.TempDir(), ClusterListen: "127.0.0.1", Secret: shared},
		"route no host":   {Name: "a", StoreDir: t.TempDir(), ClusterListen: "127.0.0.1:0", Routes: []string{"x"}, Secret: shared},
		"no secret":       {Name: "a", StoreDir: t.TempDir(), ClusterListen: "127.0.0.1:0"},
	} {
		if s, err := embed.StartNATS(c); err == nil {
			s.Close()
			t.Errorf("%s: started", name)
		}
	}
}

// TestNATSNamesTheTakenAddress: the server itself would try for ever.
func TestNATSNamesTheTakenAddress(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, err = embed.StartNATS(embed.NATS{Name: "ctl-us", StoreDir: t.TempDir(), ClusterListen: ln.Addr().String(), Secret: shared})
	if err == nil || !strings.Contains(err.Error(), ln.Addr().String()) {
		t.Fatalf("start on a taken address: %v", err)
	}
}
