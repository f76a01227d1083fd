package embed_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/geogate/geogate/internal/embed"
)

// shared is the secret of the servers of a test.
var shared = []byte("9f2b64c0d1e8a7350f6c")

// freeAddress is an address that nobody listens on at the moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// joined starts a server of a cluster.
func joined(t *testing.T, name, at, other string, secret []byte) *embed.NATSServer {
	t.Helper()
	s, err := embed.StartNATS(embed.NATS{
		Name: name, StoreDir: t.TempDir(), ClusterListen: at, Routes: []string{"nats-route://" + other}, Secret: secret,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestRoutesNeedTheSecret: a server with another secret, or with none, joins no cluster,
// though it is dialled and dials.
func TestRoutesNeedTheSecret(t *testing.T) {
	at, rogueAt := freeAddress(t), freeAddress(t)
	us := joined(t, "us", at, rogueAt, shared)
	rogue := joined(t, "rogue", rogueAt, at, []byte("another secret 3e91c7"))

	route, err := url.Parse("nats-route://" + at)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := server.NewServer(&server.Options{
		ServerName: "plain", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		Cluster: server.ClusterOpts{Name: "geogate", Host: "127.0.0.1", Port: server.RANDOM_PORT, PoolSize: -1}, Routes: []*url.URL{route},
	})
	if err != nil {
		t.Fatal(err)
	}
	plain.Start()
	t.Cleanup(func() { plain.Shutdown(); plain.WaitForShutdown() })

	// A good one comes last, by when the others have had their tries.
	eu := joined(t, "eu", freeAddress(t), at, shared)
	ctx := testContext(t)
	for tick := time.NewTicker(20 * time.Millisecond); us.Ready() != nil || eu.Ready() != nil; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("two servers with one secret do not meet: %v, %v", us.Ready(), eu.Ready())
		}
	}
	if us.Routes() != 1 || rogue.Routes() != 0 || plain.NumRoutes() != 0 {
		t.Errorf("us has %d routes, the one with another secret %d, the one without %d", us.Routes(), rogue.Routes(), plain.NumRoutes())
	}
}

// TestWipedServer: a server of a cluster that has lost its streams does not come back
// under its name, nor does another one take its streams.
func TestWipedServer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nats")
	start := func(name string) error {
		s, err := embed.StartNATS(embed.NATS{
			Name: name, StoreDir: dir, ClusterListen: freeAddress(t), Routes: []string{"nats-route://" + freeAddress(t)}, Secret: shared,
		})
		if err == nil {
			err = s.Close()
		}
		return err
	}
	for range 2 {
		if err := start("ctl-us"); err != nil {
			t.Fatal(err)
		}
	}
	if err := start("ctl-us-2"); err == nil || errors.Is(err, embed.ErrForgotten) {
		t.Errorf("another server takes the streams: %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := start("ctl-us"); !errors.Is(err, embed.ErrForgotten) || !strings.Contains(err.Error(), "geogate register replace ctl-us") {
		t.Errorf("without its streams it starts with %v", err)
	}
	if err := start("ctl-us-2"); err != nil {
		t.Errorf("under another name it starts with %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ctl-us", "ctl-us-2"} {
		if err := start(name); !errors.Is(err, embed.ErrForgotten) {
			t.Errorf("lost a second time %s starts with %v", name, err)
		}
	}
	if err := start("ctl-us-3"); err != nil {
		t.Error(err)
	}
}

// TestRouteTellsNoSecret: whoever listens in the place of another server is told nothing
// of the secret.
func TestRouteTellsNoSecret(t *testing.T) {
	impostor, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { impostor.Close() })
	joined(t, "us", freeAddress(t), impostor.Addr().String(), shared)
	conn, err := impostor.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// What a server that asks for no encryption says first.
	info := `INFO {"server_id":"X","server_name":"x","version":"2.14.4","proto":1,"go":"go","host":"127.0.0.1","port":1,"headers":true,"max_payload":1048576,"cluster":"geogate"}` + "\r\n"
	if _, err := io.WriteString(conn, info); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	told, _ := io.ReadAll(conn) // until the other side gives up
	if bytes.Contains(told, shared) {
		t.Errorf("it was told %q", told)
	}
	if len(told) == 0 || told[0] != 0x16 {
		t.Errorf("the first bytes are %.60q, no handshake", told)
	}
}
