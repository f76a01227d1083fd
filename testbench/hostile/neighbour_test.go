//go:build unix

package hostile_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/client"
)

// attacker is the address from which slow clients come; neighbours have others.
const attacker = "127.0.0.2"

// httpFrom is an HTTP client with an address of its own.
func httpFrom(t *testing.T, address string) *http.Client {
	t.Helper()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	tr := &http.Transport{DialContext: from.DialContext, MaxIdleConnsPerHost: 64, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// hold opens n connections from the attacker, sends each the head of a request and the
// begin of its body, reads nothing, and keeps them until the end of the test. What is
// refused or cut off is opened again: an attacker does not give up.
func hold(t *testing.T, to string, n int, head, drop string) {
	t.Helper()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attacker)}}
	probe, err := from.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Skipf("this machine has no loopback address %s: %v", attacker, err)
	}
	_ = probe.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for client.Poll(ctx, pollEvery, func() error { return occupy(ctx, from, to, head, drop) }) != nil && ctx.Err() == nil {
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
}

// occupy keeps one connection until it is closed from the other side, which is an error.
func occupy(ctx context.Context, from net.Dialer, to, head, drop string) error {
	c, err := from.DialContext(ctx, "tcp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4 << 10)
	}
	if _, err := io.WriteString(c, strings.ReplaceAll(head, "\n", "\r\n")); err != nil {
		return err
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if _, err := io.WriteString(c, drop); err != nil {
			return err
		}
	}
}

// neighbours use a region beside an attack and are refused nothing.
type neighbours struct {
	r      *region
	client client.Client
	stop   chan struct{}
	all    sync.WaitGroup
	rounds atomic.Int64

	mu      sync.Mutex
	stored  map[string]bool // dots of github
	latency []time.Duration // of each request
	refused []string
}

// settle starts neighbours at addresses of their own.
func settle(t *testing.T, r *region) *neighbours {
	t.Helper()
	n := &neighbours{r: r, stop: make(chan struct{}), stored: make(map[string]bool)}
	for i := range 4 {
		c := r.Client
		c.HTTP = httpFrom(t, fmt.Sprintf("127.0.0.%d", 3+i))
		n.all.Go(func() { n.live(t.Context(), c, i) })
		n.client = c
	}
	return n
}

// live writes to a partition of each topic, and reads, over and over.
func (n *neighbours) live(ctx context.Context, c client.Client, i int) {
	for round := 0; ; round++ {
		select {
		case <-n.stop:
			return
		default:
		}
		id := fmt.Sprintf("%d-%d", i, round)
		n.timed("write of an event", func() error {
			raw, _, err := c.Do(ctx, http.MethodPost, "/v1/topics/github/records", fmt.Appendf(nil, `{"value":{"type":"string","data":%q},"partition":%d}`, id, i), jsonHeader())
			if err != nil {
				return err
			}
			var a client.Answer
			err = client.Decode(raw, &a)
			n.mu.Lock()
			n.stored[a.Dot] = true
			n.mu.Unlock()
			return err
		})
		n.timed("write of an entity", func() error {
			raw, header, err := c.Do(ctx, http.MethodPost, "/v1/topics/flights/records", fmt.Appendf(nil, `{"key":{"type":"string","data":"n%d"},"value":{"type":"string","data":%q}}`, i, id), jsonHeader())
			if err != nil {
				return fmt.Errorf("%w %s", err, raw)
			}
			token := header.Get("Geogate-Token")
			raw, _, err = c.Do(ctx, http.MethodGet, fmt.Sprintf("/v1/topics/flights/entities/n%d", i), nil, http.Header{"Geogate-Token": {token}})
			if err == nil && !strings.Contains(string(raw), id) {
				err = fmt.Errorf("the entity is not %s but %s", id, raw)
			}
			return err
		})
		n.timed("page", func() error {
			_, _, err := c.Do(ctx, http.MethodGet, "/v1/topics/github/records?view=local&limit=5", nil, nil)
			return err
		})
		n.timed("status", func() error { return c.Manage(ctx, "/v1/status", &struct{}{}) })
		n.rounds.Add(1)
	}
}

func jsonHeader() http.Header { return http.Header{"Content-Type": {"application/json"}} }

func (n *neighbours) timed(what string, do func() error) {
	start := time.Now()
	err := do()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.latency = append(n.latency, time.Since(start))
	if err != nil {
		n.refused = append(n.refused, what+": "+err.Error())
	}
}

// leave ends them, and finds whatever was refused or is lost.
func (n *neighbours) leave(t *testing.T) {
	t.Helper()
	close(n.stop)
	n.all.Wait()
	if len(n.refused) > 0 {
		t.Errorf("%d requests of neighbours were refused, first %s", len(n.refused), n.refused[0])
	}
	slices.Sort(n.latency)
	t.Logf("%d requests of neighbours: half within %s, 99 of 100 within %s, all within %s", len(n.latency),
		n.latency[len(n.latency)/2].Round(time.Millisecond), n.latency[len(n.latency)*99/100].Round(time.Millisecond), n.latency[len(n.latency)-1].Round(time.Millisecond))
	seen := n.dots(t)
	for dot := range n.stored {
		if !seen[dot] {
			t.Errorf("the answered record %s is not in the log", dot)
		}
	}
}

// dots reads all of the region's own log of github.
func (n *neighbours) dots(t *testing.T) map[string]bool {
	t.Helper()
	seen := make(map[string]bool)
	for from := "earliest"; ; {
		var page struct {
			Records []struct{ Dot string }
			Next    string
			End     bool
		}
		n.r.await(t, "a page of the log", func(ctx context.Context) error {
			raw, _, err := n.client.Do(ctx, http.MethodGet, "/v1/topics/github/records?view=local&limit=1000&from="+url.QueryEscape(from), nil, nil)
			if err != nil {
				return err
			}
			return json.Unmarshal(raw, &page)
		})
		for _, r := range page.Records {
			seen[r.Dot] = true
		}
		if from = page.Next; page.End {
			return seen
		}
	}
}

// metric is the value of one of the region's metrics, 0 if it is absent.
func (r *region) metric(ctx context.Context, series string) (float64, error) {
	raw, _, err := r.DoManagement(ctx, http.MethodGet, "/metrics", nil, nil)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, nil
}

// TestSlowClients: whatever slow and greedy clients at one address hold, the memory of
// the process stays bounded, every partition and every other client goes on, and nothing
// of theirs is refused or lost.
func TestSlowClients(t *testing.T) {
	const mib = 1 << 20
	noise := make([]byte, 450<<10) // does not become smaller where it is stored
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	value := hex.EncodeToString(noise)
	empty := strings.Repeat("0", len(value)) // takes a few kilobytes where it is stored
	get := func(path string) string { return "GET " + path + " HTTP/1.1\nHost: localhost\n\n" }
	stream := "POST /v1/topics/github/records HTTP/1.1\nHost: localhost\nContent-Type: application/x-ndjson\nTransfer-Encoding: chunked\n\n"
	prepare := func(t *testing.T, under string) *deployment {
		d := deploy(t, spec{under: under})
		for i := range 64 {
			v := value
			if i%2 == 1 {
				v = empty
			}
			d.us.mustStore(t, client.Write{Topic: "github", Key: fmt.Sprint(i), Value: []byte(`"` + v + `"`), Idem: fmt.Sprint(i)})
		}
		d.us.mustStore(t, client.Write{Topic: "flights", Key: "large", Value: []byte(`"` + value + `"`), Idem: "large"})
		return d
	}
	all := prepare(t, "")
	for _, tt := range []struct {
		name       string
		n          int
		head, drop string
		under      string // what the process inherits
		metric     string // shows that the attack is under way
		least      float64
	}{
		{
			name: "announced bodies", n: 100, drop: "x", metric: `geogate_http_connections{listener="data"}`, least: 100,
			head: "POST /v1/topics/github/records HTTP/1.1\nHost: localhost\nContent-Type: text/plain\nContent-Length: 33554432\n\n",
		},
		{
			name: "unfinished bodies", n: 30, drop: "x", metric: "geogate_http_inflight_bytes", least: 100 * mib,
			head: "POST /v1/topics/github/records HTTP/1.1\nHost: localhost\nContent-Type: text/plain\nContent-Length: 33554432\n\n" + strings.Repeat("x", 33<<20-2*mib),
		},
		{name: "followed streams", n: 200, head: get("/v1/topics/github/records?follow=true&view=local"), metric: "geogate_http_followers", least: 32},
		{name: "unread pages", n: 200, head: get("/v1/topics/github/records?limit=10000&view=local"), metric: "geogate_http_readers", least: 32},
		{name: "unread entities", n: 900, head: get("/v1/topics/flights/entities/large"), metric: `geogate_http_requests_total{code="200",route="entity"}`, least: 900},
		{name: "idle streams", n: 1500, head: stream, under: "ulimit -n 1024", metric: `geogate_http_connections_refused_total{listener="data"}`, least: 1000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := all
			if tt.under != "" {
				d = prepare(t, tt.under)
			}
			d.us.resetPeak(t)
			before, _ := d.us.memory(t)
			hold(t, d.us.data, tt.n, tt.head, tt.drop)
			d.us.await(t, "the attack", func(ctx context.Context) error {
				v, err := d.us.metric(ctx, tt.metric)
				if err == nil && v < tt.least {
					err = fmt.Errorf("%s is %v", tt.metric, v)
				}
				return err
			})
			n := settle(t, d.us)
			d.us.await(t, "fifty rounds of the neighbours", func(context.Context) error {
				if r := n.rounds.Load(); r < 50 {
					return fmt.Errorf("only %d", r)
				}
				return nil
			})
			n.leave(t)
			d.us.mustRun(t)
			now, peak := d.us.memory(t)
			t.Logf("resident memory: %d MiB before, %d MiB now, %d MiB at its highest", before/mib, now/mib, peak/mib)
			// Bodies and unread answers have 256 MiB each, of which one address gets half;
			// the collector lets twice of what is in use stand.
			if most := before + 700*mib; peak > most {
				t.Errorf("resident memory went up to %d MiB, more than %d", peak/mib, most/mib)
			}
		})
	}
}
