package cutproxy

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// toLocal is a lookup that any real broker address passes through.
func toLocal(host string, port int32) (string, int32, bool) {
	if host == "" || port <= 0 {
		return "", 0, false
	}
	return "127.0.0.1", port + 1, true
}

// frameOf lays out a response as a broker sends it, without its length.
func frameOf(resp kmsg.Response, version int16, tags []byte) []byte {
	resp.SetVersion(version)
	frame := []byte{0, 0, 0, 7}
	if resp.IsFlexible() {
		frame = append(frame, tags...)
	}
	return resp.AppendTo(frame)
}

// answers are one response of each kind that names brokers, in every version.
func answers() map[int16]func() kmsg.Response {
	return map[int16]func() kmsg.Response{
		keyMetadata: func() kmsg.Response {
			r := kmsg.NewPtrMetadataResponse()
			b := kmsg.NewMetadataResponseBroker()
			b.NodeID, b.Host, b.Port = 3, "broker.example", 9092
			r.Brokers = append(r.Brokers, b)
			return r
		},
		keyFindCoordinator: func() kmsg.Response {
			r := kmsg.NewPtrFindCoordinatorResponse()
			r.Host, r.Port = "broker.example", 9092
			c := kmsg.NewFindCoordinatorResponseCoordinator()
			c.Key, c.Host, c.Port = "g", "broker.example", 9092
			none := kmsg.NewFindCoordinatorResponseCoordinator()
			none.Key, none.ErrorCode, none.Port = "h", 15, -1
			r.Coordinators = append(r.Coordinators, c, none)
			return r
		},
		keyDescribeCluster: func() kmsg.Response {
			r := kmsg.NewPtrDescribeClusterResponse()
			b := kmsg.NewDescribeClusterResponseBroker()
			b.Host, b.Port = "broker.example", 9092
			r.Brokers = append(r.Brokers, b)
			return r
		},
	}
}

// addresses returns every host:port that a decoded answer names.
func addresses(t *testing.T, resp kmsg.Response) (hosts []string, ports []int32) {
	t.Helper()
	switch r := resp.(type) {
	case *kmsg.MetadataResponse:
		return []string{r.Brokers[0].Host}, []int32{r.Brokers[0].Port}
	case *kmsg.FindCoordinatorResponse:
		if len(r.Coordinators) == 2 {
			if none := r.Coordinators[1]; none.Host != "" || none.Port != -1 {
				t.Errorf("an error's empty address became %s:%d", none.Host, none.Port)
			}
			return []string{r.Coordinators[0].Host}, []int32{r.Coordinators[0].Port}
		}
		return []string{r.Host}, []int32{r.Port}
	case *kmsg.DescribeClusterResponse:
		return []string{r.Brokers[0].Host}, []int32{r.Brokers[0].Port}
	}
	return nil, nil
}

func TestRewriteEveryVersion(t *testing.T) {
	// No tags, and one tag (number 5) of three bytes that must stay.
	for _, tags := range [][]byte{{0}, {1, 5, 3, 'a', 'b', 'c'}} {
		for key, build := range answers() {
			for v := int16(0); v <= build().MaxVersion(); v++ {
				frame := frameOf(build(), v, tags)
				out := rewrite(bytes.Clone(frame), question{key, v}, toLocal)
				resp := kmsg.ResponseForKey(key)
				resp.SetVersion(v)
				head := 4
				if resp.IsFlexible() {
					head += len(tags)
				}
				if !bytes.Equal(out[:head], frame[:head]) {
					t.Fatalf("key %d v%d: header %x became %x", key, v, frame[:head], out[:head])
				}
				if err := resp.ReadFrom(out[head:]); err != nil {
					t.Fatalf("key %d v%d: decode: %v", key, v, err)
				}
				hosts, ports := addresses(t, resp)
				if len(hosts) == 0 || hosts[0] != "127.0.0.1" || ports[0] != 9093 {
					t.Errorf("key %d v%d: address %v:%v", key, v, hosts, ports)
				}
			}
		}
	}
}

func TestRewriteLeavesWhatItDoesNotKnow(t *testing.T) {
	frame := frameOf(answers()[keyMetadata](), 9, []byte{0})
	for name, ask := range map[string]question{
		"newer version":    {keyMetadata, 99},
		"negative version": {keyMetadata, -1},
		"unknown key":      {9999, 0},
		"other answer":     {0, 9},
	} {
		if out := rewrite(bytes.Clone(frame), ask, toLocal); !bytes.Equal(out, frame) {
			t.Errorf("%s: frame changed", name)
		}
	}
	for cut := range len(frame) {
		if out := rewrite(bytes.Clone(frame[:cut]), question{keyMetadata, 9}, toLocal); !bytes.Equal(out, frame[:cut]) {
			t.Fatalf("frame cut at %d of %d changed", cut, len(frame))
		}
	}
}

// framed puts the length before each frame.
func framed(frames ...[]byte) []byte {
	var out []byte
	for _, f := range frames {
		out = binary.BigEndian.AppendUint32(out, uint32(len(f)))
		out = append(out, f...)
	}
	return out
}

func TestForwardCopiesOtherFrames(t *testing.T) {
	var asked questions
	produce := []byte{0, 0, 0, 9, 0, 0, 0, 1, 'x', 'y'} // key 0, version 9, id 1
	metadata := []byte{0, 3, 0, 9, 0, 0, 0, 7, 'z'}
	in := framed(produce, metadata)
	var out bytes.Buffer
	forwardRequests(&out, bytes.NewReader(in), &asked)
	if !bytes.Equal(out.Bytes(), in) {
		t.Fatalf("requests %x became %x", in, out.Bytes())
	}
	if len(asked.open) != 1 || asked.open[7] != (question{keyMetadata, 9}) {
		t.Fatalf("noted %v", asked.open)
	}
	other := []byte{0, 0, 0, 1, 'o', 'k'}
	in = framed(other, frameOf(answers()[keyMetadata](), 9, []byte{0}), other)
	want := framed(other, rewrite(frameOf(answers()[keyMetadata](), 9, []byte{0}), question{keyMetadata, 9}, toLocal), other)
	out.Reset()
	forwardResponses(&out, bytes.NewReader(in), &asked, toLocal)
	if !bytes.Equal(out.Bytes(), want) || len(asked.open) != 0 {
		t.Fatalf("responses became %x, want %x; still noted %v", out.Bytes(), want, asked.open)
	}
}

// FuzzRewrite: no answer of any broker makes the proxy panic, what it changes
// still decodes, and what it cannot decode it leaves alone.
func FuzzRewrite(f *testing.F) {
	for key, build := range answers() {
		for v := int16(0); v <= build().MaxVersion(); v++ {
			f.Add(frameOf(build(), v, []byte{0}), key, v)
			f.Add(frameOf(build(), v, []byte{1, 5, 3, 'a', 'b', 'c'}), key, v)
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte, key, version int16) {
		out := rewrite(bytes.Clone(frame), question{key, version}, toLocal)
		if bytes.Equal(out, frame) {
			return
		}
		again := rewrite(bytes.Clone(out), question{key, version}, func(string, int32) (string, int32, bool) { return "", 0, false })
		if !bytes.Equal(again, out) {
			t.Fatalf("rewritten frame is not in canonical form: %x, then %x", out, again)
		}
	})
}

// FuzzForward: whatever bytes either side sends, nothing panics and nothing is
// lost but the tail of a frame that its sender did not finish.
func FuzzForward(f *testing.F) {
	f.Add(framed([]byte{0, 3, 0, 9, 0, 0, 0, 7}), framed(frameOf(answers()[keyMetadata](), 9, []byte{0})))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), []byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, requests, responses []byte) {
		var asked questions
		var sent bytes.Buffer
		forwardRequests(&sent, bytes.NewReader(requests), &asked)
		if !bytes.HasPrefix(requests, sent.Bytes()) || len(requests) != sent.Len() {
			t.Fatalf("requests %x became %x", requests, sent.Bytes())
		}
		forwardResponses(io.Discard, bytes.NewReader(responses), &asked, toLocal)
	})
}
