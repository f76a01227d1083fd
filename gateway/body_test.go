package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/seat"
)

func TestInflightBudget(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.MaxRecord, c.MaxBody, c.MaxInflight = 1024, 1024, 2048 })
	entered, leave := make(chan struct{}), make(chan struct{})
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		close(entered)
		<-leave
		return w.accept(ctx, req, p)
	}
	big := post("github", strings.Repeat("x", 1000), "Content-Type", "text/plain")
	first := make(chan *http.Response)
	go func() { first <- w.do(big) }()
	<-entered
	r := w.do(big)
	if p := problemOf(t, r); r.StatusCode != 429 || p["code"] != "OVERLOADED" || r.Header.Get("Retry-After") == "" {
		t.Errorf("over the budget: %d %v", r.StatusCode, p)
	}
	close(leave)
	if r := <-first; r.StatusCode != 200 {
		t.Errorf("first: %d", r.StatusCode)
	}
	if held := w.s.bodies.total(); held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
	w.write = w.accept
	if r := w.do(big); r.StatusCode != 200 {
		t.Errorf("after: %d", r.StatusCode)
	}
}

func TestChunkedBodies(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.MaxRecord, c.MaxBody = 200<<10, 200<<10 })
	srv := httptest.NewServer(w.s.dataHandler())
	defer srv.Close()
	send := func(n int) *http.Response {
		req, err := http.NewRequest("POST", srv.URL+"/v1/topics/github/records", io.LimitReader(neverEnding('x'), int64(n)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "text/plain")
		r, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		_, _ = io.Copy(io.Discard, r.Body)
		return r
	}
	if r := send(150 << 10); r.StatusCode != 200 || len(w.wrote[0].Value) != 150<<10 {
		t.Errorf("chunked: %d", r.StatusCode)
	}
	if r := send(201 << 10); r.StatusCode != 413 || len(w.wrote) != 1 {
		t.Errorf("chunked and too large: %d", r.StatusCode)
	}
	if w.s.bodies.total() != 0 {
		t.Error("bytes are still held")
	}
}

// A body whose chunks are none is told so; one that only stops is a client that
// has gone.
func TestBrokenChunks(t *testing.T) {
	w := newWorld(t, nil)
	srv := httptest.NewServer(w.s.dataHandler())
	defer srv.Close()
	for tail, want := range map[string]string{"zz\r\n": "MALFORMED", "": ""} {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, "POST /v1/topics/github/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"+tail)
		if err == nil {
			err = conn.(*net.TCPConn).CloseWrite()
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		if err != nil || !strings.Contains(string(got), want) || (want == "") != (len(got) == 0) {
			t.Errorf("chunk %q: %q, %v", tail, got, err)
		}
		_ = conn.Close()
	}
	if len(w.wrote) != 0 || w.s.bodies.total() != 0 {
		t.Errorf("%d records written, %d bytes held", len(w.wrote), w.s.bodies.total())
	}
}

type neverEnding byte

func (b neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}
