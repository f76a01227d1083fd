//go:build unix

package hostile_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/testbench/client"
)

// TestStrangersAtTheRegister: processes of the host that come to the register's ports, as
// a server without the deployment's secret, as a server that speaks without encryption,
// and as a client, are sent away, and both regions write on.
func TestStrangersAtTheRegister(t *testing.T) {
	d := deploy(t, spec{pair: true, register: true})
	stranger, err := embed.StartNATS(embed.NATS{
		Name: "ctl-stranger", StoreDir: t.TempDir(), ClusterListen: freeAddress(t), Secret: []byte("0a9b8c7d6e5f40312233"),
		Routes: []string{"nats-route://" + d.routes["us"], "nats-route://" + d.routes["eu"], "nats-route://" + d.routes["witness"]},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stranger.Close() })

	fence := `{"subject":"own.region.us","seq":4611686018427387904,"record":{"v":1,"region":"us","id":1,"live_epoch":4611686018427387904,"state":"FENCED","by":"eu"}}`
	for member, at := range d.routes {
		for _, name := range []string{"ctl-us", "ctl-eu", "ctl-other"} {
			conn, err := net.DialTimeout("tcp", at, patience)
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			// All at once: it is for the server to stop reading.
			fmt.Fprintf(conn, "CONNECT {\"echo\":true,\"verbose\":false,\"pedantic\":false,\"name\":%q,\"cluster\":\"geogate\"}\r\n", name)
			fmt.Fprintf(conn, "INFO {\"server_id\":\"N%s\",\"server_name\":%q,\"cluster\":\"geogate\",\"headers\":true}\r\n", strings.Repeat("A", 55), name)
			fmt.Fprintf(conn, "RMSG $G fence.own.region.us %d\r\n%s\r\nRMSG $G $JS.API.STREAM.DELETE.OWN 0\r\n\r\nPING\r\n", len(fence), fence)
			said, err := io.ReadAll(conn)
			if strings.Contains(string(said), "INFO") || strings.Contains(string(said), "PONG") || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s talks with a stranger, or listens for long: %.200q, %v", member, said, err)
			}
			conn.Close()
		}
	}
	for i := range 20 {
		for _, r := range d.regions() {
			if _, err := r.Store(t.Context(), client.Write{Topic: "flights", Key: fmt.Sprintf("k%d", i), Value: []byte(`1`), Idem: fmt.Sprintf("%s-%d", r.name, i)}); err != nil {
				t.Fatalf("write %d in %s: %v", i, r.name, err)
			}
		}
	}
	if n := stranger.Routes(); n != 0 {
		t.Errorf("a server without the secret has %d routes", n)
	}
	for _, r := range d.regions() {
		r.awaitReady(t)
	}
}
