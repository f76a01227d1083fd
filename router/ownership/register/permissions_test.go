package register_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/register"
)

// restricted starts a server whose clients may do what the register needs.
func restricted(t *testing.T) *embed.NATSServer {
	t.Helper()
	n := embed.NATS{Name: "ctl", StoreDir: t.TempDir()}
	n.Publish, n.Subscribe = register.Permissions()
	server, err := embed.StartNATS(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server
}

// TestLeastPermissions: with the permissions that the documentation names, everything
// that the register's client does works.
func TestLeastPermissions(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server := restricted(t)
	received, answered := make(chan ownership.Seen, 10), make(chan ownership.Seen, 10)
	log := slog.New(slog.DiscardHandler)
	dial := func(h ownership.Handlers) *register.Register {
		r, err := register.Dial(register.Config{Dialer: server.Dialer(), Replicas: 1, Timeout: 10 * time.Second, Logger: log}, h)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	one := dial(ownership.Handlers{Answered: func(s ownership.Seen) { answered <- s }})
	two := dial(ownership.Handlers{
		Received: func(s ownership.Seen) { received <- s },
		Newest:   func(string) (uint64, []byte) { return 7, []byte(`{}`) },
	})
	for _, r := range []*register.Register{one, two} { // who makes it, and who finds it
		if _, err := r.Open(ctx); err != nil {
			t.Fatal(err)
		}
	}
	const subject = "own.region.us"
	if o, seq := one.Write(ctx, ownership.Write{ID: "a", Subject: subject, Data: []byte(`{}`), Guard: subject}); o != ownership.Stored || seq != 1 {
		t.Fatalf("write: %v at %d", o, seq)
	}
	if o, _ := one.Write(ctx, ownership.Write{ID: "b", Subject: subject, Data: []byte(`{}`), Guard: subject}); o != ownership.Conflict {
		t.Fatalf("write on an old condition: %v", o)
	}
	if s, ok := two.Read(ctx, subject); !ok || s.Seq != 1 {
		t.Fatalf("read: %+v, %t", s, ok)
	}
	if s, ok := two.Read(ctx, "own.region.eu"); !ok || s.Seq != 0 {
		t.Fatalf("read of nothing: %+v, %t", s, ok)
	}
	wctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := two.Watch(wctx, 0, func(ownership.Seen) { stop() }); !errors.Is(err, context.Canceled) {
		t.Fatalf("watch: %v", err)
	}
	if all, reachable, err := one.Voters(ctx); all != 1 || reachable != 1 || err != nil {
		t.Fatalf("voters: %d, %d, %v", all, reachable, err)
	}
	one.Broadcast(ownership.Broadcast{Subject: subject, Seq: 1, Data: []byte(`{}`)})
	one.Ask(subject, 1)
	for name, ch := range map[string]chan ownership.Seen{"broadcast": received, "answer": answered} {
		select {
		case <-ch:
		case <-ctx.Done():
			t.Errorf("no %s came", name)
		}
	}
}

// TestHarmIsDenied: with the same permissions nothing can be done to the register but
// to write it.
func TestHarmIsDenied(t *testing.T) {
	server := restricted(t)
	denied := make(chan string, 100)
	nc, err := nats.Connect("", nats.InProcessServer(server.Dialer()), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		denied <- err.Error()
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "OWN", Subjects: []string{"own.>"}}); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{
		"$JS.API.STREAM.DELETE.OWN", "$JS.API.STREAM.UPDATE.OWN", "$JS.API.STREAM.PURGE.OWN", "$JS.API.STREAM.MSG.DELETE.OWN",
		"$JS.API.STREAM.SNAPSHOT.OWN", "$JS.API.STREAM.RESTORE.OWN", "$JS.API.STREAM.LEADER.STEPDOWN.OWN", "$JS.API.STREAM.PEER.REMOVE.OWN",
		"$JS.API.META.LEADER.STEPDOWN", "$JS.API.SERVER.REMOVE", "$JS.API.STREAM.CREATE.OTHER", "$JS.API.CONSUMER.PAUSE.OWN.x", "anything",
	} {
		if err := nc.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
		select {
		case text := <-denied:
			if !strings.Contains(text, subject) && !strings.Contains(strings.ToLower(text), strings.ToLower(subject)) {
				t.Errorf("%s: %s", subject, text)
			}
		case <-ctx.Done():
			t.Fatalf("%s is not denied", subject)
		}
	}
}

// TestPermissionsAreDocumented: the configuration guide has every subject.
func TestPermissionsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/guide/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	publish, subscribe := register.Permissions()
	for _, subject := range append(publish, subscribe...) {
		if !strings.Contains(string(doc), `"`+subject+`"`) {
			t.Errorf("docs/guide/configuration.md does not name %q", subject)
		}
	}
}
