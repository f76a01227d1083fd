package gateway

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestHostsAreAnsweredByName: a listener answers to the names of this machine and
// to those that are configured. Whatever else points here (DNS rebinding) is
// refused before anything is looked at, reads included.
func TestHostsAreAnsweredByName(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) {
		c.Data.AllowedHosts = []string{"Geogate.Example", "192.0.2.7", "2001:db8::7"}
		c.Manage.AllowedHosts = []string{"operators.example"}
	})
	for host, want := range map[string][2]bool{ // data, management
		"127.0.0.1:18081":          {true, true},
		"127.0.0.1":                {true, true},
		"127.8.9.10:1":             {true, true},
		"localhost:18081":          {true, true},
		"LOCALHOST":                {true, true},
		"localhost.:80":            {true, true},
		"[::1]:18081":              {true, true},
		"[::1]":                    {true, true},
		"[::ffff:127.0.0.1]:1":     {true, true},
		"geogate.example:443":      {true, false},
		"GEOGATE.example.":         {true, false},
		"192.0.2.7:80":             {true, false},
		"[2001:db8::7]:80":         {true, false},
		"operators.example":        {false, true},
		"evil.example:18081":       {false, false},
		"geogate.example.evil.net": {false, false},
		"localhost.evil.net:18081": {false, false},
		"127.0.0.1.evil.net":       {false, false},
		"192.0.2.8":                {false, false},
		"0.0.0.0:18081":            {false, false},
		"[::]:18081":               {false, false},
		"2130706433:18081":         {false, false},
		"x@127.0.0.1:80":           {false, false},
	} {
		for i, h := range []http.Handler{w.s.dataHandler(), w.s.managementHandler()} {
			for _, r := range []request{
				post("github", `{"value":{"type":"json","data":1}}`),
				get("/v1/ownership"), get("/nope"),
				{method: "POST", path: "/v1/fence", body: "{}"},
			} {
				before := len(w.wrote)
				if r.header == nil {
					r.header = map[string]string{}
				}
				r.header["Host"] = host
				a := do(t, h, r)
				if refused := a.StatusCode == 421; refused == want[i] {
					t.Errorf("%s %s on listener %d as %s: %d", r.method, r.path, i, host, a.StatusCode)
				}
				if a.StatusCode == 421 {
					if p := problemOf(t, a); p["code"] != "HOST_NOT_ALLOWED" || p["retriable"] != false {
						t.Errorf("problem %v", p)
					}
					if len(w.wrote) > before {
						t.Errorf("a write as %s was stored", host)
					}
				}
			}
		}
	}
}

// TestClientsWithoutHost: HTTP/1.0, which some health checks speak, has no Host.
func TestClientsWithoutHost(t *testing.T) {
	w := newWorld(t, nil)
	srv := httptest.NewServer(w.s.managementHandler())
	t.Cleanup(srv.Close)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /livez HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(b), "HTTP/1.0 200 OK") {
		t.Errorf("answered %q, %v", b, err)
	}
}

// TestForeignPagesChangeNothing: what a browser sends for a page of another origin
// is refused wherever it would change something, whatever its type.
func TestForeignPagesChangeNothing(t *testing.T) {
	reg := &commanded{}
	w := newWorld(t, func(_ *Config, d *Deps) { d.Ownership = reg })
	const own = "http://127.0.0.1:18081"
	for name, tt := range map[string]struct {
		header  map[string]string
		allowed bool
	}{
		"no browser":            {nil, true},
		"typed by the user":     {map[string]string{"Sec-Fetch-Site": "none"}, true},
		"same origin":           {map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": own}, true},
		"same origin, old":      {map[string]string{"Origin": own}, true},
		"cross site":            {map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, false},
		"cross site, no origin": {map[string]string{"Sec-Fetch-Site": "cross-site"}, false},
		"another port":          {map[string]string{"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:3000"}, false},
		"another port, old":     {map[string]string{"Origin": "http://127.0.0.1:3000"}, false},
		"foreign, old":          {map[string]string{"Origin": "https://evil.example"}, false},
		"sandboxed, old":        {map[string]string{"Origin": "null"}, false},
		"unknown site":          {map[string]string{"Sec-Fetch-Site": "nonsense"}, false},
	} {
		for _, r := range []struct {
			request
			management bool
		}{
			{post("github", `{"value":{"type":"json","data":1}}`), false},
			{post("github", `raw`, "Content-Type", "text/plain"), false},
			{post("github", `{"value":null,"key":{"type":"string","data":"k"}}`, "Content-Type", "application/x-ndjson"), false},
			{request{method: "POST", path: "/v1/fence", body: `{"region":"eu","reason":"x"}`, header: map[string]string{"Content-Type": "application/json"}}, true},
			{request{method: "POST", path: "/v1/unfence", body: `{"region":"eu"}`, header: map[string]string{"Content-Type": "application/json"}}, true},
			{request{method: "POST", path: "/debug/pprof/symbol", header: map[string]string{}}, true},
		} {
			before := len(w.wrote) + len(reg.got)
			for k, v := range tt.header {
				r.header[k] = v
			}
			h := w.s.dataHandler()
			if r.management {
				h = w.s.managementHandler()
			}
			a := do(t, h, r.request)
			if (a.StatusCode == 200) != tt.allowed {
				t.Errorf("%s: %s %s: %d %s", name, r.method, r.path, a.StatusCode, text(t, a))
				continue
			}
			if tt.allowed {
				continue
			}
			if p := problemOf(t, a); p["code"] != "FOREIGN_ORIGIN" || p["status"] != 403.0 || p["retriable"] != false {
				t.Errorf("%s: %v", name, p)
			}
			if len(w.wrote)+len(reg.got) > before {
				t.Errorf("%s: %s %s was carried out", name, r.method, r.path)
			}
		}
	}
	// What reads is answered: the browser itself keeps it from the page.
	if a := w.do(get("/v1/ownership", "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example")); a.StatusCode != 200 || a.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a read: %d %v", a.StatusCode, a.Header)
	}
}

// TestNothingIsSniffed: every answer, errors and streams included, says that its
// type is to be believed.
func TestNothingIsSniffed(t *testing.T) {
	w := newWorld(t, nil)
	for _, r := range []struct {
		request
		management bool
	}{
		{post("github", `{"value":{"type":"json","data":1}}`), false},
		{post("github", `{"value":{"type":"json","data":1}}`, "Content-Type", "application/x-ndjson"), false},
		{post("nope", `{"value":{"type":"json","data":1}}`), false},
		{get("/nope"), false},
		{get("/v1/ownership", "Host", "evil.example"), false},
		{get("/livez"), true},
		{get("/readyz"), true},
		{get("/metrics"), true},
		{get("/debug/pprof/"), true},
	} {
		h := w.s.dataHandler()
		if r.management {
			h = w.s.managementHandler()
		}
		if a := do(t, h, r.request); a.Header.Get("X-Content-Type-Options") != "nosniff" || a.Header.Get("Cross-Origin-Resource-Policy") != "same-origin" {
			t.Errorf("%s %s: %d %v", r.method, r.path, a.StatusCode, a.Header)
		}
	}
}

// TestProbesKnowTheirHost: the listener of a process that is no gateway follows the
// same rules.
func TestProbesKnowTheirHost(t *testing.T) {
	p, err := NewProbeServer(ListenerConfig{Listen: "127.0.0.1:0", AllowedHosts: []string{"witness.example"}}, nil, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	for host, want := range map[string]int{"": 200, "witness.example": 200, "evil.example": 421} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Addr()+"/livez", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host // empty: the address
		a, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body := text(t, a)
		_ = a.Body.Close()
		if a.StatusCode != want || a.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("as %q: %d %v", host, a.StatusCode, a.Header)
		}
		if want == 421 && !strings.Contains(body, `"code":"HOST_NOT_ALLOWED"`) {
			t.Errorf("as %q: %s", host, body)
		}
	}
}
