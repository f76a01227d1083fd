package embed_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestDocumentedServer: a server with the accounts that the configuration guide shows
// takes a gateway that comes without credentials, and lets it make the register and not
// delete it.
func TestDocumentedServer(t *testing.T) {
	doc, err := os.ReadFile("../../docs/guide/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(doc), "```text\naccounts {")
	text, _, ended := strings.Cut(text, "```")
	if !ok || !ended {
		t.Fatal("docs/guide/configuration.md shows no accounts")
	}
	path := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(path, []byte("accounts {"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatal(err)
	}
	opts.Host, opts.Port, opts.JetStream, opts.StoreDir, opts.NoSigs, opts.NoLog = "127.0.0.1", server.RANDOM_PORT, true, t.TempDir(), true, true
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server does not start")
	}
	denied := make(chan string, 10)
	nc, err := nats.Connect(s.ClientURL(), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err.Error() }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "OWN", Subjects: []string{"own.>"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "own.region.us", nil); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { _ = js.DeleteStream(short, "OWN") }() // is never answered
	select {
	case text := <-denied:
		if !strings.Contains(text, "STREAM.DELETE.OWN") {
			t.Error(text)
		}
	case <-ctx.Done():
		t.Fatal("deleting the register is not denied")
	}
}
