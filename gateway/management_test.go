package gateway

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/event"
)

func TestManagement(t *testing.T) {
	w := newWorld(t, nil)
	h := w.s.managementHandler()
	latency := regexp.MustCompile(`("p\d\d_ms":)[\d.]+`) // is what it is
	w.do(post("github", `{"value":{"type":"json","data":1}}`))
	w.do(post("nope", `{"value":{"type":"json","data":1}}`))
	for path, want := range map[string]string{
		"/livez":          "ok\n",
		"/readyz":         "ok\n",
		"/readyz?verbose": "[+]tail ok\n[+]gateway ok\n",
		"/configz":        "region: us\n",
		"/v1/status": `{"version":"0.1.0","time":"2026-11-29T10:00:00.123Z","region":"us","instance":"us-0","mode":"solo","register":null,` +
			`"regions":[],"links":[],"units":[],"residency":{"state":"off"},"writes":[{"topic":"github","seconds":300,"stored":1,"p50_ms":1,"p99_ms":1,"refused":{}}],"frontiers":[],"warnings":[]}` + "\n",
		"/v1/topics": `{"topics":[{"name":"flights","role":"local","partitions":6,"domain":"air","kind":"entity","policy":"lww",` +
			`"links":[{"link":"us-eu","state":"included","rule":"include \"*\""}]}],"next":null,"end":true}` + "\n",
	} {
		r := do(t, h, get(path))
		if got := latency.ReplaceAllString(text(t, r), "${1}1"); r.StatusCode != 200 || got != want || r.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d %s\nwant %s", path, r.StatusCode, got, want)
		}
	}
	for path, part := range map[string]string{
		"/metrics":      `geogate_rejected_total{reason="TOPIC_UNKNOWN"} 1`,
		"/debug/pprof/": "goroutine",
	} {
		if r := do(t, h, get(path)); r.StatusCode != 200 || !strings.Contains(text(t, r), part) {
			t.Errorf("%s: %d without %s", path, r.StatusCode, part)
		}
	}
	metrics := text(t, do(t, h, get("/metrics")))
	for _, line := range []string{
		`geogate_records_accepted_total 1`, `geogate_http_requests_total{code="200",route="records"} 1`,
		`geogate_http_requests_total{code="404",route="records"} 1`, `geogate_http_inflight_bytes 0`, `geogate_http_readers 0`,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("metrics without %s", line)
		}
	}
	if p := problemOf(t, do(t, h, get("/v1/topics/flights/records"))); p["code"] != "NOT_FOUND" || !strings.Contains(fmt.Sprint(p["detail"]), "data listener") {
		t.Errorf("data on the management listener: %v", p)
	}
	if p := problemOf(t, do(t, h, request{method: "POST", path: "/v1/status"})); p["code"] != "METHOD_NOT_ALLOWED" {
		t.Errorf("POST status: %v", p)
	}
	w.ready = errors.New("catching up")
	r := do(t, h, get("/readyz?verbose"))
	if got := text(t, r); r.StatusCode != 503 || got != "[-]tail catching up\n[+]gateway ok\n" {
		t.Errorf("not ready: %d %s", r.StatusCode, got)
	}
}

// TestReadinessForReads: what only writes need is left out of it.
func TestReadinessForReads(t *testing.T) {
	var reads, writes error
	w := newWorld(t, func(_ *Config, d *Deps) {
		d.Probes = []Probe{
			{Name: "seats", Ready: func(context.Context) error { return reads }},
			{Name: "writes", Writes: true, Ready: func(context.Context) error { return writes }},
		}
	})
	h := w.s.managementHandler()
	for _, tt := range []struct {
		reads, writes error
		path          string
		status        int
		text          string
	}{
		{nil, errors.New("the lease has run out"), "/readyz", 503, "[-]writes the lease has run out\n"},
		{nil, errors.New("the lease has run out"), "/readyz?for=write", 503, "[-]writes the lease has run out\n"},
		{nil, errors.New("the lease has run out"), "/readyz?for=read", 200, "ok\n"},
		{nil, errors.New("x"), "/readyz?for=read&verbose", 200, "[+]seats ok\n[+]gateway ok\n"},
		{errors.New("starting"), nil, "/readyz?for=read", 503, "[-]seats starting\n"},
	} {
		reads, writes = tt.reads, tt.writes
		if r := do(t, h, get(tt.path)); r.StatusCode != tt.status || text(t, r) != tt.text {
			t.Errorf("%s with %v, %v: %d", tt.path, tt.reads, tt.writes, r.StatusCode)
		}
	}
	if p := problemOf(t, do(t, h, get("/readyz?for=both"))); p["code"] != "MALFORMED" {
		t.Errorf("an unknown purpose: %v", p)
	}
}

func TestPprofIsOffUnlessAskedFor(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.Pprof = false })
	if r := do(t, w.s.managementHandler(), get("/debug/pprof/")); r.StatusCode != 404 {
		t.Errorf("status %d", r.StatusCode)
	}
}

func TestConfigIsChecked(t *testing.T) {
	top := topologyOf(t, "us", "eu")
	good := Config{Region: us, Topology: top, Data: ListenerConfig{Listen: "127.0.0.1:0"}, Manage: ListenerConfig{Listen: "[::1]:0"}}
	if err := good.Validate(); err != nil {
		t.Errorf("good: %v", err)
	}
	for name, change := range map[string]func(*Config){
		"no topology":       func(c *Config) { c.Topology = nil },
		"region":            func(c *Config) { c.Region = event.MaxRegion },
		"all addresses":     func(c *Config) { c.Data.Listen = ":8080" },
		"address":           func(c *Config) { c.Manage.Listen = "192.0.2.1:80" },
		"host name":         func(c *Config) { c.Data.Listen = "example.com:80" },
		"no port":           func(c *Config) { c.Data.Listen = "127.0.0.1" },
		"host with port":    func(c *Config) { c.Data.AllowedHosts = []string{"geogate.example:80"} },
		"host as URL":       func(c *Config) { c.Manage.AllowedHosts = []string{"http://geogate.example"} },
		"record over body":  func(c *Config) { c.MaxRecord, c.MaxBody = 2, 1 },
		"body over budget":  func(c *Config) { c.MaxInflight = 1 },
		"no record at all":  func(c *Config) { c.MaxRecord = -1 },
		"no readers at all": func(c *Config) { c.MaxReaders = -1 },
	} {
		c := good
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// Who asks the data listener for what operators have is told where it is.
func TestManagementPathsOnTheDataListener(t *testing.T) {
	w := newWorld(t, nil)
	for _, path := range []string{"/readyz", "/metrics", "/livez", "/v1/status", "/"} {
		p := problemOf(t, w.do(get(path)))
		if p["code"] != "NOT_FOUND" || !strings.Contains(fmt.Sprint(p["detail"]), "management listener") {
			t.Errorf("%s: %v", path, p)
		}
	}
	if p := problemOf(t, w.do(get("/nope"))); strings.Contains(fmt.Sprint(p["detail"]), "management") {
		t.Errorf("/nope: %v", p)
	}
}
