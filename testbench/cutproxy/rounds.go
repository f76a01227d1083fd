package cutproxy

import (
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"time"
)

// Rounds are the round trips of a client, counted: no request goes through before all that
// the client can send without an answer has come, and then all of it goes at once. So whatever
// had to wait for an answer is in a later round, however slow the machine is. A connection
// takes a round of its own before its first request, as it does on a line with a delay.
type Rounds struct {
	quiet time.Duration

	mu      sync.Mutex
	gate    chan struct{} // closed when the round ends
	timer   *time.Timer   // ends the round when nothing more comes; nil: nothing waits
	keys    [][]int16     // of each round, the present one last
	stopped bool
}

// CountRounds counts rounds from now on. quiet is how long nothing has to come from the
// client before a round ends: longer than it ever computes.
func (p *Proxy) CountRounds(quiet time.Duration) *Rounds {
	r := &Rounds{quiet: quiet, gate: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rounds = r
	return r
}

// Count is how many rounds there were.
func (r *Rounds) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(0, len(r.keys)-1)
}

// Keys are the api keys of the requests of each round; -1 is a connection.
func (r *Rounds) Keys() [][]int16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([][]int16, len(r.keys))
	for i := range r.keys {
		out[i] = slices.Clone(r.keys[i])
	}
	return out
}

// connection stands for a new connection among the api keys of requests.
const connection = -1

// Stop lets everything through from now on.
func (r *Rounds) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped {
		r.stopped = true
		close(r.gate)
	}
}

// join takes part in the present round and gives what is closed at its end.
func (r *Rounds) join(key int16) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return r.gate
	}
	if r.timer == nil {
		r.timer = time.AfterFunc(r.quiet, r.end)
	} else {
		r.timer.Reset(r.quiet)
	}
	if len(r.keys) == 0 {
		r.keys = [][]int16{nil}
	}
	last := len(r.keys) - 1
	r.keys[last] = append(r.keys[last], key)
	return r.gate
}

func (r *Rounds) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	r.keys = append(r.keys, nil)
	close(r.gate)
	r.gate, r.timer = make(chan struct{}), nil
}

// waitingFrame is a request that waits for the end of its round.
type waitingFrame struct {
	bytes []byte
	gate  <-chan struct{}
}

// maxWaiting bounds the requests of one connection that wait.
const maxWaiting = 1024

// forwardInRounds is forwardRequests while rounds are counted: requests that a client sends
// without waiting for answers go in one round, also on one connection.
func forwardInRounds(broker io.Writer, client io.Reader, asked *questions) {
	select {
	case <-asked.rounds.join(connection): // until then no line has taken a request
	case <-asked.gone:
		return
	}
	waiting := make(chan waitingFrame, maxWaiting)
	var writer sync.WaitGroup
	defer writer.Wait()
	defer close(waiting)
	writer.Go(func() {
		for f := range waiting {
			select {
			case <-f.gate:
				if _, err := broker.Write(f.bytes); err == nil {
					continue
				}
			case <-asked.gone:
			}
			for range waiting { // so that the sender is not blocked
			}
			return
		}
	})
	for {
		var head [4]byte
		if _, err := io.ReadFull(client, head[:]); err != nil {
			return
		}
		size := binary.BigEndian.Uint32(head[:])
		if size < 8 || size > maxRewrite {
			return
		}
		frame := append(head[:], make([]byte, size)...)
		if _, err := io.ReadFull(client, frame[4:]); err != nil {
			return
		}
		ask := question{int16(binary.BigEndian.Uint16(frame[4:])), int16(binary.BigEndian.Uint16(frame[6:]))}
		asked.add(int32(binary.BigEndian.Uint32(frame[8:])), ask)
		waiting <- waitingFrame{frame, asked.rounds.join(ask.key)}
	}
}
