package cutproxy

import (
	"encoding/binary"
	"io"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	keyMetadata        = 3
	keyFindCoordinator = 10
	keyDescribeCluster = 60

	// maxRewrite bounds the answers that are held in memory to be rewritten;
	// larger ones are passed as they are. Metadata of 100,000 partitions is
	// about 5 MB.
	maxRewrite = 32 << 20
	// maxAsked bounds the questions remembered of a client that never reads.
	maxAsked = 1024
)

// question is what must be known of a request to decode its answer, or to lose
// it.
type question struct{ key, version int16 }

// questions holds the requests of one connection whose answers name brokers or
// shall get lost, by correlation id, until they are answered.
type questions struct {
	faults *Proxy        // whose LoseAnswers and Hold are kept; nil has none
	rounds *Rounds       // nil: none are counted
	gone   chan struct{} // closed when no more answers are forwarded

	mu   sync.Mutex
	open map[int32]question
}

// wait holds a request back; false means that the connection has ended.
func (q *questions) wait(key int16) bool {
	if q.faults == nil {
		return true
	}
	gate := q.faults.gate(key)
	if gate == nil {
		return true
	}
	select {
	case <-gate:
		return true
	case <-q.gone:
		return false
	}
}

func (q *questions) loses(key int16) bool { return q.faults != nil && q.faults.loses(key) }

func (q *questions) add(id int32, ask question) {
	if !namesBrokers(ask.key) && !q.loses(ask.key) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open == nil {
		q.open = make(map[int32]question)
	}
	if len(q.open) < maxAsked {
		q.open[id] = ask
	}
}

func (q *questions) take(id int32) (question, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	ask, ok := q.open[id]
	delete(q.open, id)
	return ask, ok
}

func namesBrokers(key int16) bool {
	return key == keyMetadata || key == keyFindCoordinator || key == keyDescribeCluster
}

// forwardRequests copies a client's frames to the broker and notes those whose
// answers name brokers. What is no Kafka frame is copied as bytes.
//
// A request begins with its length (int32), api key, version (int16 each) and
// correlation id (int32).
func forwardRequests(broker io.Writer, client io.Reader, asked *questions) {
	if asked.rounds != nil {
		forwardInRounds(broker, client, asked)
		return
	}
	for {
		var head [12]byte
		n, err := io.ReadFull(client, head[:])
		size := int64(int32(binary.BigEndian.Uint32(head[:])))
		if err != nil || size < 8 {
			if _, werr := broker.Write(head[:n]); err == nil && werr == nil {
				io.Copy(broker, client)
			}
			return
		}
		be := binary.BigEndian
		ask := question{int16(be.Uint16(head[4:])), int16(be.Uint16(head[6:]))}
		if !asked.wait(ask.key) {
			return
		}
		asked.add(int32(be.Uint32(head[8:])), ask)
		if _, err := broker.Write(head[:]); err != nil {
			return
		}
		if _, err := io.CopyN(broker, client, size-8); err != nil {
			return
		}
	}
}

// forwardResponses copies a broker's frames to the client and rewrites the
// addresses in those that answer a noted request. A response begins with its
// length and correlation id (int32 each). lost tells that it ended because an
// answer shall get lost.
func forwardResponses(client io.Writer, broker io.Reader, asked *questions, local lookup) (lost bool) {
	for {
		var head [8]byte
		n, err := io.ReadFull(broker, head[:])
		size := int64(int32(binary.BigEndian.Uint32(head[:])))
		if err != nil || size < 4 {
			if _, werr := client.Write(head[:n]); err == nil && werr == nil {
				io.Copy(client, broker)
			}
			return false
		}
		ask, ok := asked.take(int32(binary.BigEndian.Uint32(head[4:])))
		if ok && asked.loses(ask.key) {
			return true
		}
		if !ok || !namesBrokers(ask.key) || size > maxRewrite {
			if _, err := client.Write(head[:]); err != nil {
				return false
			}
			if _, err := io.CopyN(client, broker, size-4); err != nil {
				return false
			}
			continue
		}
		frame := make([]byte, size)
		copy(frame, head[4:])
		if _, err := io.ReadFull(broker, frame[4:]); err != nil {
			return false
		}
		frame = rewrite(frame, ask, local)
		out := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(frame)), uint32(len(frame)))
		if _, err := client.Write(append(out, frame...)); err != nil {
			return false
		}
	}
}

// lookup gives the proxy's own address for a broker's, or false to leave it.
type lookup func(host string, port int32) (string, int32, bool)

// rewrite returns a response frame (correlation id and all that follows) with
// broker addresses replaced. A frame that does not decode to its last byte is
// returned unchanged: a proxy must not make a broken answer look sound.
func rewrite(frame []byte, ask question, local lookup) []byte {
	resp := kmsg.ResponseForKey(ask.key)
	if resp == nil || ask.version < 0 || ask.version > resp.MaxVersion() {
		return frame
	}
	resp.SetVersion(ask.version)
	head := 4
	if resp.IsFlexible() {
		n, ok := tagsLen(frame[min(4, len(frame)):])
		if !ok {
			return frame
		}
		head += n
	}
	if len(frame) < head || resp.ReadFrom(frame[head:]) != nil {
		return frame
	}
	replace := func(host *string, port *int32) {
		if h, n, ok := local(*host, *port); ok {
			*host, *port = h, n
		}
	}
	switch r := resp.(type) {
	case *kmsg.MetadataResponse:
		for i := range r.Brokers {
			replace(&r.Brokers[i].Host, &r.Brokers[i].Port)
		}
	case *kmsg.FindCoordinatorResponse:
		replace(&r.Host, &r.Port)
		for i := range r.Coordinators {
			replace(&r.Coordinators[i].Host, &r.Coordinators[i].Port)
		}
	case *kmsg.DescribeClusterResponse:
		for i := range r.Brokers {
			replace(&r.Brokers[i].Host, &r.Brokers[i].Port)
		}
	default:
		return frame
	}
	return resp.AppendTo(frame[:head:head])
}

// tagsLen returns the length of the tagged fields in a flexible response header:
// uvarint count, then for each uvarint tag, uvarint size, bytes.
func tagsLen(b []byte) (int, bool) {
	at := 0
	next := func() (uint64, bool) {
		v, n := binary.Uvarint(b[at:])
		if n <= 0 {
			return 0, false
		}
		at += n
		return v, true
	}
	count, ok := next()
	if !ok || count > uint64(len(b)) {
		return 0, false
	}
	for range count {
		if _, ok := next(); !ok {
			return 0, false
		}
		size, ok := next()
		if !ok || size > uint64(len(b)-at) {
			return 0, false
		}
		at += int(size)
	}
	return at, true
}
