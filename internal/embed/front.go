package embed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What clients may send. kfake trusts a request to be as long as it says it is, of
// a kind that exists, and to hold batches that count what they say; the front
// believes none of it.
const (
	maxProduce     = 64 << 20 // bytes of a produce request; a client packs many batches in one
	maxRequest     = 4 << 20  // of any other
	maxFetch       = 96 << 20 // that one fetch may ask for; clients take no answer of 100 MiB
	maxTopics      = 10_000   // that one produce request may name
	maxConnections = 1024
	// maxHeld bounds the requests that have arrived in part, over all connections.
	// Above it the connection of the one that has been arriving longest is closed.
	maxHeld = 256 << 20
	// requestTimeout is how long one request may take to arrive.
	requestTimeout = 30 * time.Second
	firstChunk     = 16 << 10
)

// errRequest says that a request must not reach the broker; its connection is
// closed, as Kafka's own broker does.
var errRequest = errors.New("embed: request refused")

// front stands between clients and the broker: a request reaches it only whole and
// checked, and memory for a request is taken as its bytes arrive.
type front struct {
	net.Listener
	log            *slog.Logger
	failed         *failure
	maxHeld        int
	maxConnections int

	// own is the server's side of a connection that is accepted before all others; starts is
	// valid, and others are accepted, once open is closed.
	own    chan net.Conn
	open   chan struct{}
	starts *starts
	shut   chan struct{} // closed by Close
	once   sync.Once

	mu    sync.Mutex
	conns map[*frontConn]struct{}
	held  int    // bytes in the frames of all connections
	begun uint64 // counts frames
}

func newFront(ln net.Listener, log *slog.Logger, failed *failure) *front {
	return &front{
		Listener: ln, log: log, failed: failed, maxHeld: maxHeld, maxConnections: maxConnections, conns: make(map[*frontConn]struct{}),
		own: make(chan net.Conn), open: make(chan struct{}), shut: make(chan struct{}),
	}
}

// acceptClients begins to accept clients. Their requests to delete records are noted in s.
func (f *front) acceptClients(s *starts) {
	f.starts = s
	close(f.open)
}

// Close implements net.Listener.
func (f *front) Close() error {
	f.once.Do(func() { close(f.shut) })
	return f.Listener.Close()
}

// Accept implements net.Listener. Connections beyond the limit are closed.
func (f *front) Accept() (net.Conn, error) {
	select {
	case <-f.open:
	default:
		select {
		case <-f.open:
		case c := <-f.own:
			return c, nil
		case <-f.shut:
			return nil, net.ErrClosed
		}
	}
	for {
		c, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		fc := &frontConn{Conn: c, front: f}
		f.mu.Lock()
		full := len(f.conns) >= f.maxConnections
		if !full {
			f.conns[fc] = struct{}{}
		}
		f.mu.Unlock()
		if !full {
			return fc, nil
		}
		f.log.Warn("too many connections to the embedded kafka; closing a new one", "limit", f.maxConnections)
		_ = c.Close()
	}
}

// hold notes that a connection's frame has grown by n bytes, and makes room for it
// by closing the connections whose requests have been arriving longest.
func (f *front) hold(c *frontConn, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held += n
	c.held += n
	for f.held > f.maxHeld {
		oldest := c
		for o := range f.conns {
			if o.held > 0 && o.began < oldest.began {
				oldest = o
			}
		}
		f.release(oldest)
		_ = oldest.Conn.Close() // its read fails, and its owner closes it
		f.log.Warn("requests to the embedded kafka take too much memory; closing the connection with the oldest", "limit_bytes", f.maxHeld)
	}
}

// release takes a connection's frame off the sum; the caller holds mu.
func (f *front) release(c *frontConn) {
	f.held -= c.held
	c.held = 0
}

// frontConn is a connection from which whole requests are read. The broker reads
// it in one goroutine at a time.
type frontConn struct {
	net.Conn
	front *front

	frame []byte // size and request, checked
	read  int    // of it

	// Guarded by front.mu.
	held  int
	began uint64 // number of the frame
}

// Read implements net.Conn: it gives bytes of whole requests only.
func (c *frontConn) Read(p []byte) (int, error) {
	if c.read == len(c.frame) {
		if err := c.next(); err != nil {
			if errors.Is(err, errRequest) {
				c.front.log.Warn("closing a connection to the embedded kafka", "err", err)
			}
			return 0, err
		}
	}
	n := copy(p, c.frame[c.read:])
	if c.read += n; c.read == len(c.frame) {
		c.drop()
	}
	return n, nil
}

// Write implements net.Conn. A broker that could not write something answers
// nothing more.
func (c *frontConn) Write(p []byte) (int, error) {
	if c.front.failed.happened() {
		return 0, ErrCannotWrite
	}
	return c.Conn.Write(p)
}

// drop forgets the frame.
func (c *frontConn) drop() {
	c.frame, c.read = nil, 0
	c.front.mu.Lock()
	c.front.release(c)
	c.front.mu.Unlock()
}

// Close implements net.Conn.
func (c *frontConn) Close() error {
	c.front.mu.Lock()
	c.front.release(c)
	delete(c.front.conns, c)
	c.front.mu.Unlock()
	return c.Conn.Close()
}

// sizeAndKind is how much of a request says how large it is and of which kind:
// size i32, api key i16, api version i16.
const sizeAndKind = 8

// next reads one request.
func (c *frontConn) next() error {
	var head [sizeAndKind]byte
	if _, err := io.ReadFull(c.Conn, head[:1]); err != nil {
		return err // between two requests: nothing is wrong
	}
	if err := c.Conn.SetReadDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c.Conn, head[1:]); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[:]))
	key, version := int16(binary.BigEndian.Uint16(head[4:])), int16(binary.BigEndian.Uint16(head[6:]))
	limit := int64(maxRequest)
	if key == kmsg.Produce.Int16() {
		limit = maxProduce
	}
	switch kind := kmsg.RequestForKey(key); {
	case kind == nil || version < 0 || version > kind.MaxVersion() && key != kmsg.ApiVersions.Int16():
		return fmt.Errorf("%w: kind %d version %d is not known", errRequest, key, version)
	case size < sizeAndKind-4:
		return fmt.Errorf("%w: %d bytes are too few", errRequest, size)
	case size > limit:
		return fmt.Errorf("%w: %d bytes of kind %d are more than %d", errRequest, size, key, limit)
	}
	if err := c.fill(head[:], int(size)+4); err != nil {
		c.drop()
		return err
	}
	if err := c.front.check(c.frame, key, version); err != nil {
		c.drop()
		return err
	}
	return c.Conn.SetReadDeadline(time.Time{})
}

// fill reads the rest of a request of total bytes. What it keeps grows with what
// has come.
func (c *frontConn) fill(head []byte, total int) error {
	f := c.front
	f.mu.Lock()
	f.begun++
	c.began = f.begun
	f.mu.Unlock()
	buf := make([]byte, len(head), min(total, firstChunk))
	copy(buf, head)
	f.hold(c, cap(buf))
	for len(buf) < total {
		if len(buf) == cap(buf) {
			more := min(total, 2*cap(buf))
			f.hold(c, more-cap(buf))
			buf = append(make([]byte, 0, more), buf...)
		}
		n, err := c.Conn.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil && len(buf) < total {
			return err
		}
	}
	c.frame = buf
	return nil
}

// The versions from which requests that are looked into have or lack a field.
const (
	produceTransactional = 3  // transactional id
	produceFlexible      = 9  // compact lengths, tags
	produceByID          = 13 // topic ids instead of names
	fetchBounded         = 3  // how much is wanted in all
	fetchNoReplica       = 15 // no replica id in front
)

// check looks into a request, without taking memory for it. A fetch that asks for
// more than the broker should gather for one answer is made to ask for less. What
// a request deletes is noted before the broker gets it.
func (f *front) check(frame []byte, key, version int16) error {
	w := walker{Reader: kbin.Reader{Src: frame[sizeAndKind:]}}
	w.Int32() // correlation id
	w.take(int64(w.Int16()))
	kind := kmsg.RequestForKey(key)
	kind.SetVersion(version)
	if w.flexible = kind.IsFlexible(); w.flexible {
		w.tags()
	}
	switch key {
	case kmsg.Produce.Int16():
		return w.produce(version)
	case kmsg.Fetch.Int16():
		w.fetch(version)
	case kmsg.DeleteRecords.Int16():
		return w.deleteRecords(f.starts)
	}
	return nil
}

// walker steps through a request.
type walker struct {
	kbin.Reader
	flexible bool
}

// produce wants each batch to count at least one record: kfake moves the end of a
// log by what the batch says, also backwards.
func (w *walker) produce(version int16) error {
	if version >= produceTransactional {
		w.bytes(true)
	}
	w.Int16() // acks
	w.Int32() // timeout
	topics := w.array()
	if topics > maxTopics {
		return fmt.Errorf("%w: %d topics in one produce request", errRequest, topics)
	}
	for range topics {
		if version >= produceByID {
			w.Uuid()
		} else {
			w.bytes(true)
		}
		for range w.array() {
			w.Int32() // partition
			batch := w.bytes(false)
			w.tags()
			if !w.Ok() {
				return errShort()
			}
			if len(batch) < countEnd {
				continue // kfake refuses it
			}
			if n := int32(binary.BigEndian.Uint32(batch[countEnd-4:])); n < 1 {
				return fmt.Errorf("%w: a batch of %d records", errRequest, n)
			}
		}
		w.tags()
		if !w.Ok() {
			return errShort()
		}
	}
	return nil
}

// deleteRecords notes the offsets at which logs are to begin, and replaces them by those that
// note returns. A request with one that cannot be noted is refused.
func (w *walker) deleteRecords(s *starts) error {
	for range w.array() {
		topic := string(w.bytes(true))
		for range w.array() {
			partition, at := w.Int32(), w.Src
			offset := w.Int64()
			w.tags()
			if !w.Ok() {
				return errShort()
			}
			offset, err := s.note(topic, partition, offset)
			if err != nil {
				return fmt.Errorf("%w: note the start of log %s/%d: %w", errRequest, topic, partition, err)
			}
			binary.BigEndian.PutUint64(at, uint64(offset))
		}
		w.tags()
	}
	return nil
}

func errShort() error { return fmt.Errorf("%w: it ends early", errRequest) }

// countEnd is the end of the field of a batch that counts its records.
const countEnd = 61

// fetch bounds what a fetch asks for, in place.
func (w *walker) fetch(version int16) {
	at := 8 // longest wait, least bytes
	if version < fetchNoReplica {
		at += 4
	}
	if version >= fetchBounded && len(w.Src) >= at+4 && binary.BigEndian.Uint32(w.Src[at:]) > maxFetch {
		binary.BigEndian.PutUint32(w.Src[at:], maxFetch)
	}
}

// bytes reads a string, of which the length is short unless it is compact, or bytes.
func (w *walker) bytes(isString bool) []byte {
	switch {
	case w.flexible:
		return w.take(int64(w.Uvarint()) - 1)
	case isString:
		return w.take(int64(w.Int16()))
	default:
		return w.take(int64(w.Int32()))
	}
}

// take reads n bytes, none if n is negative.
func (w *walker) take(n int64) []byte {
	if n <= 0 {
		return nil
	}
	if n > int64(len(w.Src)) {
		n = int64(len(w.Src)) + 1 // more than there is: the reader notes that
	}
	return w.Span(int(n))
}

// array reads the length of an array, at most as many as there are bytes.
func (w *walker) array() int32 {
	if w.flexible {
		return max(0, w.CompactArrayLen())
	}
	return max(0, w.ArrayLen())
}

// tags reads the tagged fields.
func (w *walker) tags() {
	if w.flexible {
		kmsg.SkipTags(&w.Reader)
	}
}
