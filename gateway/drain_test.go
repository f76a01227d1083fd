package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/seat"
)

func TestDrain(t *testing.T) {
	w := newWorld(t, nil)
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	streamed := make(chan struct{})
	w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
		if string(req.Value) == "slow" {
			once.Do(func() { close(entered) })
			<-leave
		} else {
			close(streamed)
		}
		return w.accept(ctx, req, p)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.s.Run(ctx) }()
	url := "http://" + w.s.DataAddr() + "/v1/topics/github/records"
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	type result struct {
		status int
		body   string
	}
	send := func(body io.Reader, media string) result {
		r, err := client.Post(url, media, body)
		if err != nil {
			return result{0, err.Error()}
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return result{r.StatusCode, string(b)}
	}
	// One write in flight, and one stream of which a line is answered.
	slow := make(chan result, 1)
	go func() { slow <- send(strings.NewReader("slow"), "text/plain") }()
	<-entered
	in, out := io.Pipe()
	stream := make(chan result, 1)
	go func() { stream <- send(in, "application/x-ndjson") }()
	fmt.Fprintln(out, `{"value":{"type":"json","data":1}}`)
	<-streamed
	stops := make(chan struct{})
	w.s.drain.onStop(func() { close(stops) })
	cancel()
	<-stops
	if r := send(strings.NewReader("late"), "text/plain"); r.status != 503 || !strings.Contains(r.body, "DRAINING") {
		t.Errorf("late write: %+v", r)
	}
	if r := do(t, w.s.managementHandler(), get("/readyz")); r.StatusCode != 503 {
		t.Errorf("readyz while draining: %d", r.StatusCode)
	}
	r := <-stream
	if lines := strings.Split(strings.TrimSpace(r.body), "\n"); len(lines) != 2 || !strings.Contains(lines[0], `"ack"`) || !strings.Contains(lines[1], "DRAINING") {
		t.Errorf("stream: %+v", r)
	}
	close(leave)
	if r := <-slow; r.status != 200 {
		t.Errorf("write in flight: %+v", r)
	}
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if _, err := net.Dial("tcp", w.s.DataAddr()); err == nil {
		t.Error("the listener is still open")
	}
}

// TestRunWaitsForWhatItAbandons: a stream whose line is not stored within the drain
// is told so, and nothing of it runs once Run has returned.
func TestRunWaitsForWhatItAbandons(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.Drain = time.Millisecond })
	entered := make(chan struct{})
	var left atomic.Bool
	w.write = func(ctx context.Context, _ seat.Request, _ int32) (seat.Answer, error) {
		close(entered)
		<-ctx.Done()
		left.Store(true)
		return seat.Answer{}, ctx.Err()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	answered := make(chan string, 1)
	go func() {
		r, err := client.Post("http://"+w.s.DataAddr()+"/v1/topics/github/records", "application/x-ndjson", strings.NewReader(`{"value":{"type":"json","data":1},"idempotency_key":"k"}`+"\n"))
		if err != nil {
			answered <- err.Error()
			return
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		answered <- string(b)
	}()
	<-entered
	cancel()
	if err := <-ended; err != nil || !left.Load() {
		t.Errorf("run ended with %v; the write has ended: %t", err, left.Load())
	}
	if a := <-answered; !strings.Contains(a, "OUTCOME_UNKNOWN") {
		t.Errorf("the line was answered %q", a)
	}
}
