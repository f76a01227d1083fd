package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router"
)

// dial opens a connection to an address from another loopback address than others
// have.
func dial(t *testing.T, from, to string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Skipf("this machine has no loopback address %s: %v", from, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask opens a connection, sends the head of a request and reads no answer.
func ask(t *testing.T, from, to, head string) net.Conn {
	t.Helper()
	c := dial(t, from, to)
	if _, err := io.WriteString(c, strings.ReplaceAll(head, "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
	return c
}

// clientOf is an HTTP client at an address of its own.
func clientOf(t *testing.T, from string) *http.Client {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	tr := &http.Transport{DialContext: d.DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func status(t *testing.T, c *http.Client, req *http.Request) int {
	t.Helper()
	r, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		t.Fatal(err)
	}
	return r.StatusCode
}

func (w *world) url(path string) string { return "http://" + w.s.DataAddr() + path }

func write(t *testing.T, c *http.Client, w *world, size int) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url("/v1/topics/github/records"), strings.NewReader(strings.Repeat("x", size)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "text/plain")
	return status(t, c, req)
}

func read(t *testing.T, c *http.Client, w *world, path string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url(path), nil)
	if err != nil {
		t.Fatal(err)
	}
	return status(t, c, req)
}

// cutOff waits until the other side closes a connection on which it owes nothing.
func cutOff(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection was not cut off")
	}
}

// announcing is a write that announces a body.
func announcing(size int) string {
	return fmt.Sprintf("POST /v1/topics/github/records HTTP/1.1\nHost: localhost\nContent-Type: text/plain\nContent-Length: %d\n\n", size)
}

// TestAnnouncedBytesTakeNothing: connections that announce large bodies and send a
// byte keep nobody from writing, not even clients of their own address.
func TestAnnouncedBytesTakeNothing(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.MaxInflight, c.MaxBody, c.MaxRecord = 8<<20, 4<<20, 4<<20 })
	w.running()
	for range 16 {
		ask(t, "127.0.0.2", w.s.DataAddr(), announcing(4<<20)+"x")
	}
	eventually(t, "all slow bodies", func() bool { return w.s.bodies.total() >= 16*partSize })
	for _, from := range []string{"127.0.0.2", "127.0.0.3"} {
		for range 3 {
			if got := write(t, clientOf(t, from), w, 1<<20); got != 200 {
				t.Errorf("a write from %s beside slow ones: %d", from, got)
			}
		}
	}
}

// TestHeldBytesLeaveRoom: an address that has really sent all that it can get, and
// leaves its bodies unfinished, keeps no other address from writing; once they are
// cut off, it can write again itself.
func TestHeldBytesLeaveRoom(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.MaxInflight, c.MaxBody, c.MaxRecord = 8<<20, 4<<20, 4<<20 })
	w.s.partTime = time.Hour
	w.running()
	for range 20 {
		c := dial(t, "127.0.0.2", w.s.DataAddr())
		go func() { // refused in the middle, or unfinished until the test's end
			_, _ = io.WriteString(c, strings.ReplaceAll(announcing(4<<20), "\n", "\r\n")+strings.Repeat("x", 4<<20-1))
		}()
	}
	eventually(t, "an address with all it can get", func() bool { return w.metric(`geogate_rejected_total{reason="OVERLOADED"}`) > 0 })
	for range 3 {
		if got := write(t, clientOf(t, "127.0.0.3"), w, 1<<20); got != 200 {
			t.Errorf("a write beside an address that has all it can get: %d", got)
		}
	}
}

// TestSlowBodiesAreCutOff: a body that arrives more slowly than the least rate, as a
// whole or as a line of a stream, is ended; so is what it held.
func TestSlowBodiesAreCutOff(t *testing.T) {
	w := newWorld(t, nil)
	w.s.partTime = 100 * time.Millisecond
	w.running()
	for name, head := range map[string]string{
		"body":    announcing(1 << 20),
		"chunked": "POST /v1/topics/github/records HTTP/1.1\nHost: localhost\nContent-Type: text/plain\nTransfer-Encoding: chunked\n\n",
		"line":    "POST /v1/topics/github/records HTTP/1.1\nHost: localhost\nContent-Type: application/x-ndjson\nContent-Length: 1000000\n\n{",
	} {
		t.Run(name, func(t *testing.T) {
			c := ask(t, "127.0.0.2", w.s.DataAddr(), head)
			stop := make(chan struct{})
			var sending sync.WaitGroup
			sending.Go(func() {
				tick := time.NewTicker(10 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-tick.C:
					case <-stop:
						return
					}
					drop := "x"
					if name == "chunked" {
						drop = "1\r\nx\r\n"
					}
					if _, err := io.WriteString(c, drop); err != nil {
						return
					}
				}
			})
			cutOff(t, c)
			close(stop)
			sending.Wait()
		})
	}
	eventually(t, "nothing held", func() bool { return w.s.bodies.total() == 0 })
	if len(w.wrote) > 0 {
		t.Errorf("half a body was stored: %q", w.wrote)
	}
}

// deadlines is a writer that notes the deadline for reading.
type deadlines struct {
	*httptest.ResponseRecorder
	mu    sync.Mutex
	until time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until = at
	return nil
}

func (d *deadlines) left() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Until(d.until)
}

// pieces gives one piece at each Read.
type pieces struct {
	left   []string
	before func(piece string)
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	p.before(p.left[0])
	n := copy(b, p.left[0])
	p.left = p.left[1:]
	return n, nil
}

// TestStreamsRestBetweenLines: the least rate is about lines that have started; a
// stream may say nothing for much longer.
func TestStreamsRestBetweenLines(t *testing.T) {
	w := newWorld(t, nil)
	rec := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	const first, rest = `{"value":{"type":"json"`, `,"data":1}}` + "\n"
	in := &pieces{left: []string{first, rest, first, rest}, before: func(piece string) {
		if long := rec.left() > 2*partTime; long != (piece == first) {
			t.Errorf("before %q there are %s left", piece, rec.left())
		}
	}}
	req := httptest.NewRequest("POST", "http://127.0.0.1/v1/topics/github/records", in)
	req.Header.Set("Content-Type", "application/x-ndjson")
	w.s.dataHandler().ServeHTTP(rec, req)
	if got := strings.Count(rec.Body.String(), `"ack":"local"`); got != 2 {
		t.Errorf("%d lines are stored: %s", got, rec.Body)
	}
}

// TestUnreadPages: pages that nobody takes hold little, are cut off, and keep no
// other address from reading.
func TestUnreadPages(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, func(c *Config, d *Deps) { with(c, d); c.MaxReaders = 8 })
	for i := range int64(64) {
		merge(t, cl, "github", 0, stamped(us, 0, i, 0, "k", strings.Repeat("x", 256<<10)))
	}
	w.s.partTime = time.Hour
	w.running()
	const page = "/v1/topics/github/records?limit=10000"
	var unread []net.Conn
	for range 12 {
		unread = append(unread, ask(t, "127.0.0.2", w.s.DataAddr(), "GET "+page+" HTTP/1.1\nHost: localhost\n\n"))
	}
	eventually(t, "an address with all reads that it can get", func() bool { return w.s.reads.total() >= 4 })
	for range 3 {
		if got := read(t, clientOf(t, "127.0.0.3"), w, page); got != 200 {
			t.Errorf("a page beside unread ones: %d", got)
		}
	}
	if n := w.s.unread.total(); n > 8*buffered(2) {
		t.Errorf("unread pages hold %d bytes", n)
	}
	for _, c := range unread {
		_ = c.Close()
	}
	eventually(t, "the end of all reads", func() bool { return w.s.reads.total() == 0 && w.s.unread.total() == 0 })
}

// TestUnreadAnswersAreCutOff: whoever takes nothing of an answer for too long loses
// it, and what it held.
func TestUnreadAnswersAreCutOff(t *testing.T) {
	with, cl := withKafka(t, "github.merged")
	w := newWorld(t, with)
	for i := range int64(64) {
		merge(t, cl, "github", 0, stamped(us, 0, i, 0, "k", strings.Repeat("x", 512<<10)))
	}
	p := router.Partition([]byte("big"), 6)
	big := stamped(us, p, 1, 0, "big", strings.Repeat("x", 32<<20))
	w.seat("flights", p).entities["big"] = conflict.State{Live: []conflict.Live{{Event: big}}}
	w.s.partTime = 200 * time.Millisecond
	w.running()
	for _, path := range []string{"/v1/topics/github/records?limit=10000", "/v1/topics/github/records?follow=true", "/v1/topics/flights/entities/big"} {
		c := ask(t, "127.0.0.2", w.s.DataAddr(), "GET "+path+" HTTP/1.1\nHost: localhost\n\n")
		eventually(t, "the answer's begin", func() bool { return w.s.unread.total() > 0 })
		eventually(t, "the end of "+path, func() bool { return w.s.unread.total() == 0 && w.s.reads.total() == 0 && w.s.follows.total() == 0 })
		cutOff(t, c)
	}
}

// TestUnreadEntities: entities that nobody takes hold no more than there is, and
// keep no other address from reading.
func TestUnreadEntities(t *testing.T) {
	w := newWorld(t, nil)
	p := router.Partition([]byte("big"), 6)
	big := stamped(us, p, 1, 0, "big", strings.Repeat("x", 8<<20)) // more than sockets take
	w.seat("flights", p).entities["big"] = conflict.State{Live: []conflict.Live{{Event: big}}}
	w.s.partTime, w.s.patience = time.Hour, 10*time.Millisecond
	w.running()
	for range 40 {
		ask(t, "127.0.0.2", w.s.DataAddr(), "GET /v1/topics/flights/entities/big HTTP/1.1\nHost: localhost\n\n")
	}
	eventually(t, "an address with all it can get", func() bool { return w.metric(`geogate_rejected_total{reason="OVERLOADED"}`) > 0 })
	for range 3 {
		if got := read(t, clientOf(t, "127.0.0.3"), w, "/v1/topics/flights/entities/big"); got != 200 {
			t.Errorf("an entity beside unread ones: %d", got)
		}
	}
	if n := w.s.unread.total(); n > 256<<20 {
		t.Errorf("unread entities hold %d bytes", n)
	}
}

// TestConnectionsAreLimited: an address with all connections that it can get keeps
// neither other addresses nor the management listener's clients from connecting.
func TestConnectionsAreLimited(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.Data.MaxConnections, c.Manage.MaxConnections = 20, 4 })
	w.running()
	idle := 0
	for range 40 { // streams of writes that say nothing
		ask(t, "127.0.0.2", w.s.DataAddr(), "POST /v1/topics/github/records HTTP/1.1\nHost: localhost\nContent-Type: application/x-ndjson\nContent-Length: 100\n\n")
	}
	eventually(t, "refused connections", func() bool {
		idle = int(w.s.data.open.total())
		return w.metric(`geogate_http_connections_refused_total{listener="data"}`) == 30
	})
	if idle != 10 {
		t.Errorf("one address has %d connections of 20", idle)
	}
	if got := write(t, clientOf(t, "127.0.0.3"), w, 1); got != 200 {
		t.Errorf("a write beside many connections: %d", got)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.s.ManageAddr()+"/livez", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := status(t, clientOf(t, "127.0.0.2"), req); got != 200 {
		t.Errorf("management beside many connections: %d", got)
	}
}

// TestClosedConnectionsCountNoMore: the limit is one of open connections.
func TestClosedConnectionsCountNoMore(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.Data.MaxConnections = 2 })
	w.running()
	for range 20 {
		eventually(t, "the connection before to be gone", func() bool { return w.s.data.open.total() == 0 })
		if got := write(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, w, 1); got != 200 {
			t.Errorf("answered %d", got)
		}
	}
}

// TestSeatLeavesRoom: an address that has as many writes in flight in a partition as it
// can get keeps no other address from writing there.
func TestSeatLeavesRoom(t *testing.T) {
	// Where the machine is so busy that it takes longer to have that many in flight than a
	// write may wait, the first have ended before the last are there.
	w := newWorld(t, func(c *Config, _ *Deps) { c.WriteTimeout = time.Hour })
	w.s.partTime = time.Hour
	var mu sync.Mutex
	inFlight := 0
	leave := make(chan struct{})
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		mu.Lock()
		if inFlight >= seat.DefaultInFlight { // as a seat does
			mu.Unlock()
			return seat.Answer{}, seat.ErrOverloaded
		}
		inFlight++
		mu.Unlock()
		if string(req.Key) != "honest" {
			select {
			case <-leave:
			case <-ctx.Done():
			}
		}
		mu.Lock()
		inFlight--
		mu.Unlock()
		return w.accept(ctx, req, p)
	}
	w.running()
	for stream := range 20 {
		c := ask(t, "127.0.0.2", w.s.DataAddr(), "POST /v1/topics/github/records HTTP/1.1\nHost: localhost\nContent-Type: application/x-ndjson\nContent-Length: 10000000\n\n")
		for line := range seat.DefaultInFlight / 16 {
			if _, err := fmt.Fprintf(c, `{"key":{"type":"string","data":"%d-%d"},"value":null,"partition":0}`+"\n", stream, line); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "an address with all it can get", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return inFlight == seat.DefaultInFlight/2
	})
	for range 10 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url("/v1/topics/github/records"),
			strings.NewReader(`{"key":{"type":"string","data":"honest"},"value":null,"partition":0}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if got := status(t, clientOf(t, "127.0.0.3"), req); got != 200 {
			t.Errorf("a write beside many in the same partition: %d", got)
		}
	}
	close(leave)
	eventually(t, "the end of all writes", func() bool {
		return w.s.writer.flights.inUse() == 0
	})
}
