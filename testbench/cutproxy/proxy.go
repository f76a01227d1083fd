// Package cutproxy is a TCP proxy before a Kafka cluster whose link can be cut.
//
// A Kafka client asks its seeds for the brokers' addresses and then connects to
// those, so an ordinary proxy is used for one question only. This one rewrites
// the addresses in Metadata, FindCoordinator and DescribeCluster answers to
// listeners of its own, one for each broker, and everything a client sends to
// the cluster goes through it. Nothing else is looked at or changed.
//
// Cut makes the cluster unreachable through the proxy as a broken line would:
// open connections are reset and new ones refused, until Heal. LoseAnswers lets
// requests of one kind through and resets the connection where the answer should
// come; Hold keeps requests of one kind back; CountRounds counts round trips. None of them
// changes any frame.
//
// StartTCP gives the same for a server that is no Kafka, without rewriting
// anything; such a proxy can also Swallow one direction alone. Tap keeps what goes
// through a proxy of either kind in files.
//
// HAZARD: answers in versions newer than kmsg knows are passed as they are, as
// are the new leader's addresses in Produce and Fetch errors; a client may then
// reach a broker directly. One-broker clusters send no such errors.
package cutproxy

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	dialWait = 3 * time.Second
	// healWait is how long Heal tries to get its ports back: something else may
	// hold one for a moment.
	healWait = 5 * time.Second
)

// Proxy stands before one cluster. All methods may be called at any time from
// any goroutine.
type Proxy struct {
	host  string // address that every listener binds
	plain bool   // forwards bytes, knows no frames, and listens while cut

	mu     sync.Mutex
	doors  map[string]*door // by the broker's own address
	order  []string         // brokers in order of appearance, seeds first
	conns  map[net.Conn]struct{}
	cut    bool
	closed bool
	deaf   [2]bool                 // plain: swallows what clients send, what comes back
	losing map[int16]bool          // api keys whose answers are lost
	held   map[int16]chan struct{} // api keys whose requests wait until it is closed
	rounds *Rounds                 // that are counted; nil: none
	tapDir string                  // where new connections are written down; empty: nowhere
	tapped int                     // connections written down so far

	work sync.WaitGroup // every goroutine; Close waits for it
}

// door is the listener for one broker.
type door struct {
	broker string       // where its connections go
	addr   string       // where it listens; kept while cut
	ln     net.Listener // nil while closed
}

// Start listens for the cluster that upstream's addresses lead to: on listen
// (host:port, port 0 for any) for the first of them and on free ports of the
// same host for the others and for every broker that appears in an answer.
// Upstream need not be reachable yet.
func Start(upstream []string, listen string) (*Proxy, error) {
	return start(upstream, listen, false)
}

// StartTCP listens for one server that is no Kafka: bytes go through as they
// are, and of the faults only Cut and Swallow apply. While cut it resets whoever
// connects and keeps its port, which would be somebody else's before long. The
// server need not be reachable yet.
func StartTCP(upstream, listen string) (*Proxy, error) {
	return start([]string{upstream}, listen, true)
}

func start(upstream []string, listen string, plain bool) (*Proxy, error) {
	if len(upstream) == 0 {
		return nil, errors.New("start proxy: no upstream address")
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("parse proxy address: %w", err)
	}
	p := &Proxy{
		host: host, plain: plain, doors: make(map[string]*door), conns: make(map[net.Conn]struct{}),
		losing: make(map[int16]bool), held: make(map[int16]chan struct{}),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, broker := range upstream {
		addr := listen
		if i > 0 {
			addr = net.JoinHostPort(host, "0")
		}
		if _, err := p.openLocked(broker, addr); err != nil {
			p.shutLocked()
			return nil, err
		}
	}
	return p, nil
}

// Seeds returns the addresses to give a client instead of the upstream ones, in
// the same order.
func (p *Proxy) Seeds() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]string, 0, len(p.order))
	for _, broker := range p.order {
		out = append(out, p.doors[broker].addr)
	}
	return out
}

// Addr returns the address of the first seed's listener.
func (p *Proxy) Addr() string { return p.Seeds()[0] }

// Cut resets every connection and refuses new ones until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	if p.plain {
		p.dropLocked()
	} else {
		p.shutLocked()
	}
}

// Swallow keeps connections open and carries on nothing of what clients send
// (there), of what comes back, or of both. What is swallowed is lost, and so Heal
// resets those connections. Only a proxy of StartTCP does it.
func (p *Proxy) Swallow(there, back bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf = [2]bool{p.deaf[0] || there, p.deaf[1] || back}
}

// Heal takes Cut and Swallow back: it listens again on the same addresses and
// carries everything. After an error it may be called again.
func (p *Proxy) Heal() error {
	deadline := time.Now().Add(healWait)
	for {
		err := p.heal()
		if err == nil || errors.Is(err, net.ErrClosed) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *Proxy) heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("heal proxy: %w", net.ErrClosed)
	}
	for _, broker := range p.order {
		if d := p.doors[broker]; d.ln == nil {
			if err := p.listenLocked(d); err != nil {
				return err
			}
		}
	}
	if p.deaf != [2]bool{} {
		p.dropLocked()
	}
	p.cut, p.deaf = false, [2]bool{}
	return nil
}

// LoseAnswers makes the answer to every request of an api key get lost: the
// broker has done what was asked, and the client's connection is reset instead.
// keep ends it.
func (p *Proxy) LoseAnswers(key int16) (keep func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losing[key] = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.losing, key)
	}
}

// Hold keeps requests of an api key, and what a client sends after them on the
// same connection, from the broker until release.
func (p *Proxy) Hold(key int16) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gate, ok := p.held[key]
	if !ok {
		gate = make(chan struct{})
		p.held[key] = gate
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.held[key] == gate {
			delete(p.held, key)
			close(gate)
		}
	})
}

// gate is what a request of an api key waits for; nil: it need not wait.
func (p *Proxy) gate(key int16) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[key]
}

func (p *Proxy) loses(key int16) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.losing[key]
}

// Connections returns how many client connections are open: 0 means that
// nothing uses the proxy.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) / 2 // both ends are registered
}

// Close resets every connection and waits until the proxy's goroutines are
// gone.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed, p.cut = true, true
	p.shutLocked()
	p.mu.Unlock()
	p.work.Wait()
	return nil
}

// shutLocked closes every listener and resets every connection. It waits for
// nothing: the goroutines see it by their own errors.
func (p *Proxy) shutLocked() {
	for _, d := range p.doors {
		if d.ln != nil {
			d.ln.Close()
			d.ln = nil
		}
	}
	p.dropLocked()
}

func (p *Proxy) dropLocked() {
	for c := range p.conns {
		reset(c)
	}
	clear(p.conns)
}

// reset closes a connection so that the other side sees a reset, not an orderly
// end.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}

// openLocked makes the door for a broker that has none.
func (p *Proxy) openLocked(broker, listen string) (*door, error) {
	if d, ok := p.doors[broker]; ok {
		return d, nil
	}
	d := &door{broker: broker, addr: listen}
	if err := p.listenLocked(d); err != nil {
		return nil, err
	}
	p.doors[broker] = d
	p.order = append(p.order, broker)
	return d, nil
}

func (p *Proxy) listenLocked(d *door) error {
	ln, err := net.Listen("tcp", d.addr)
	if err != nil {
		return fmt.Errorf("listen for broker %s: %w", d.broker, err)
	}
	d.ln, d.addr = ln, ln.Addr().String()
	p.work.Go(func() { p.accept(ln, d.broker) })
	return nil
}

// accept serves one listener until Cut or Close closes it.
func (p *Proxy) accept(ln net.Listener, broker string) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		p.work.Go(func() { p.serve(c, broker) })
	}
}

// serve joins a client to its broker until either side ends.
func (p *Proxy) serve(client net.Conn, broker string) {
	defer client.Close()
	if p.isCut() {
		reset(client)
		return
	}
	upstream, err := net.DialTimeout("tcp", broker, dialWait)
	if err != nil {
		slog.Debug("dial upstream", "broker", broker, "err", err)
		reset(client)
		return
	}
	defer upstream.Close()
	if !p.register(client, upstream) {
		reset(client)
		reset(upstream)
		return
	}
	defer p.forget(client, upstream)
	there, back, untap, err := p.tap(client, upstream)
	if err != nil {
		slog.Error("tap connection", "broker", broker, "err", err)
		reset(client) // what a scan would not see must not happen
		return
	}
	defer untap()
	asked := questions{faults: p, gone: make(chan struct{})}
	asked.rounds = p.counted()
	var both sync.WaitGroup
	both.Go(func() {
		if p.plain {
			p.pour(upstream, there, 0)
		} else {
			forwardRequests(upstream, there, &asked)
		}
		upstream.Close() // ends the other direction
	})
	both.Go(func() {
		defer close(asked.gone)
		if p.plain {
			p.pour(client, back, 1)
		} else if forwardResponses(client, back, &asked, p.local) {
			reset(client)
		}
		client.Close()
		upstream.Close()
	})
	both.Wait()
}

// counted are the rounds that new connections take part in; nil: none are counted.
func (p *Proxy) counted() *Rounds {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rounds
}

func (p *Proxy) isCut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

// register makes the connections known to Cut; it refuses while cut.
func (p *Proxy) register(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return false
	}
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return true
}

func (p *Proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
	}
}

// local returns the proxy's address for a broker's, opening a door for one that
// is new. Without one (while cut, or out of ports) the answer is left as it is.
func (p *Proxy) local(host string, port int32) (string, int32, bool) {
	if host == "" || port <= 0 || port > 65535 {
		return "", 0, false // a FindCoordinator error names no broker
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	broker := net.JoinHostPort(host, strconv.Itoa(int(port)))
	d, ok := p.doors[broker]
	if !ok {
		if p.cut || slices.ContainsFunc(p.order, func(b string) bool { return p.doors[b].addr == broker }) {
			return "", 0, false // an address of our own: already rewritten
		}
		var err error
		if d, err = p.openLocked(broker, net.JoinHostPort(p.host, "0")); err != nil {
			slog.Warn("open proxy listener", "broker", broker, "err", err)
			return "", 0, false
		}
	}
	h, s, err := net.SplitHostPort(d.addr)
	if err != nil {
		return "", 0, false
	}
	n, err := strconv.Atoi(s)
	return h, int32(n), err == nil
}
