package event_test

import (
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

type names map[string]event.RegionID

func (n names) ID(s string) (event.RegionID, bool) { id, ok := n[s]; return id, ok }

func (n names) Name(id event.RegionID) string {
	for s, i := range n {
		if i == id {
			return s
		}
	}
	return ""
}

var twoRegions = names{"us": 1, "eu": 2}

func golden() event.Envelope {
	e := event.Envelope{
		ID:     event.ID{0x01, 0xa2, 0x26, 0xbf, 0x49, 0x7b, 0x7c, 0x3e, 0x9a, 0x51, 0x6f, 0x0d, 0x2f, 0x1b, 0x7e, 0x10},
		Region: 1, Incarnation: 0, Barrier: 300, Epoch: event.FirstEpoch(1),
		Stamp:       0x01a226bf497b0007,
		Op:          event.Put,
		Key:         event.IdempotencyKey{15: 1},
		Fingerprint: event.Fingerprint{15: 2},
		Dot:         &event.Dot{Region: 1, Partition: 3, Offset: 4711},
		Merged:      &event.Merged{Siblings: 1, Rule: event.LWW, Flags: event.FlagCorrects},
		Replaced:    &event.Replaced{LeftOut: true, Code: 10, Timestamp: 1_796_000_000_123, Topic: "flights", Partition: 3, Offset: 4711},
	}
	e.Context[2] = event.Point{Incarnation: 1, Next: 94}
	return e
}

// TestEnvelopeGolden holds the bytes against the table in docs/format.
func TestEnvelopeGolden(t *testing.T) {
	doc, err := os.ReadFile("../../docs/format/envelope.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(gg-[a-z]+)` \\|.*\\| `([0-9a-f]+)` \\|$").FindAllStringSubmatch(string(doc), -1) {
		want[m[1]] = m[2]
	}
	e := golden()
	got := map[string]string{}
	var order []string
	for _, h := range e.Append(nil) {
		got[h.Key] = hex.EncodeToString(h.Value)
		order = append(order, h.Key)
	}
	if !maps.Equal(got, want) {
		t.Errorf("headers\n got %v\nwant %v", got, want)
	}
	if o := strings.Join(order, " "); o != "gg-v gg-id gg-o gg-e gg-u gg-h gg-c gg-t gg-k gg-f gg-d gg-m gg-r" {
		t.Errorf("order %s", o)
	}
	for _, c := range []struct{ name, got string }{
		{"token", goldenToken().String()},
		{"cursor", goldenCursor().String()},
		{"key", hex.EncodeToString(sliceOf(event.HashKey([]byte(event.DefaultIdempotencySecret), "", "flights", "flights:17")))},
		{"fingerprint", hex.EncodeToString(sliceOf(goldenRequest().Fingerprint()))},
	} {
		if !strings.Contains(string(doc), "`"+c.got+"`") {
			t.Errorf("%s %s does not stand in the document", c.name, c.got)
		}
	}
}

func sliceOf[T ~[16]byte](v T) []byte { return v[:] }

func goldenToken() event.Token {
	tok := event.Token{Topic: event.HashTopic("flights"), Partition: 3, Stamp: 0x01a226bf497b0007}
	tok.Vector[1] = event.Point{Next: 4712}
	tok.Vector[2] = event.Point{Incarnation: 1, Next: 94}
	return tok
}

func goldenCursor() event.Cursor {
	var v event.Vector
	v[1] = event.Point{Next: 4712}
	v[2] = event.Point{Incarnation: 1, Next: 94}
	return event.Cursor{Topic: event.HashTopic("flights"), Visible: 1, At: map[int32]event.Vector{3: v, 0: {2: {Next: 5}}}}
}

func goldenRequest() *event.Request {
	return &event.Request{
		Topic: "flights", Key: []byte("DTW"), Op: event.Put, Value: []byte(`{"delay":66}`), Partition: -1,
		Headers: []event.Header{{Key: "src", Value: []byte("hi")}, {Key: "flag"}, {Key: "content-type", Value: []byte("text/plain")}},
	}
}

// TestReplacedHeaderOfAnOrigin: a producer's own gg-r says nothing of a record in an origin's
// log, and a merged record of it does not have it.
func TestReplacedHeaderOfAnOrigin(t *testing.T) {
	e := golden()
	e.Dot, e.Merged = nil, nil
	at := event.Dot{Region: 1, Partition: 3, Offset: 4711}
	for name, hs := range map[string][]event.Header{"stamped": e.Append(nil), "native": {e.Replaced.Header()}} {
		ev, err := event.FromRecord(at, 5, nil, []byte("v"), hs)
		if err != nil || ev.Replaced != nil || ev.LeftOut || string(ev.Value) != "v" || len(ev.Headers) != 0 {
			t.Errorf("%s: %+v, %v", name, ev, err)
		}
	}
	for _, bad := range []string{"", "\x00\x00\x00", "\x04" + string(e.Replaced.Header().Value[1:]), string(e.Replaced.Header().Value) + "x"} {
		if ev, err := event.FromRecord(at, 5, nil, nil, []event.Header{{Key: event.HeaderReplaced, Value: []byte(bad)}}); !errors.Is(err, event.ErrMalformed) {
			t.Errorf("%q: %+v, %v", bad, ev, err)
		}
	}
}

func TestDecodeKeepsProducerHeaders(t *testing.T) {
	e := golden()
	producer := []event.Header{{Key: "a", Value: nil}, {Key: "a", Value: []byte{}}, {Key: "ce_id", Value: []byte("x")}, {Key: "gg-zz", Value: []byte("later")}}
	got, rest, stamped, err := event.Decode(e.Append(slices.Clone(producer)))
	if err != nil || !stamped {
		t.Fatalf("Decode: stamped %v, %v", stamped, err)
	}
	if !reflect.DeepEqual(got, e) {
		t.Errorf("envelope\n got %+v\nwant %+v", got, e)
	}
	if !reflect.DeepEqual(rest, producer) {
		t.Errorf("rest = %+v", rest)
	}
}

func TestDecodeRefuses(t *testing.T) {
	full := func() []event.Header { e := golden(); return e.Append(nil) }
	with := func(name string, value ...byte) []event.Header {
		hs := full()
		for i := range hs {
			if hs[i].Key == name {
				hs[i].Value = value
			}
		}
		return hs
	}
	for name, hs := range map[string][]event.Header{
		"missing one":        full()[1:],
		"twice":              append(full(), event.Header{Key: "gg-t", Value: []byte{1}}),
		"version 2":          with("gg-v", 2),
		"short id":           with("gg-id", 1, 2),
		"region 0":           with("gg-o", 0, 0, 0),
		"region 16":          with("gg-o", 16, 0, 0),
		"long varint":        with("gg-e", 0x80, 0),
		"null epoch":         with("gg-u"),
		"context own region": with("gg-c", 1, 1, 0, 4),
		"context unsorted":   with("gg-c", 2, 3, 0, 4, 2, 0, 4),
		"context cut":        with("gg-c", 2, 2, 0, 4),
		"unknown op":         with("gg-t", 3),
		"trailing":           with("gg-t", 1, 0),
		"zero key":           with("gg-k", make([]byte, 16)...),
		"print without key":  slices.DeleteFunc(full(), func(h event.Header) bool { return h.Key == "gg-k" }),
	} {
		if _, rest, _, err := event.Decode(hs); !errors.Is(err, event.ErrMalformed) {
			t.Errorf("%s: error %v", name, err)
		} else if len(rest) != len(hs) {
			t.Errorf("%s: headers lost", name)
		}
	}
}

func TestFromRecord(t *testing.T) {
	at := event.Dot{Region: 2, Partition: 1, Offset: 9}
	ev, err := event.FromRecord(at, 1234, []byte("k"), nil, []event.Header{{Key: "h"}})
	if err != nil || ev.Stamped || ev.Stamp != hlc.FromMillis(1234) || !ev.ID.IsZero() || ev.Op != event.Delete || ev.Region != 2 {
		t.Errorf("unstamped: %+v, %v", ev, err)
	}
	if c := ev.FullContext(); c != (event.Vector{2: {Next: 9}}) {
		t.Errorf("context of an unstamped record = %v", c)
	}
	e := golden()
	e.Dot, e.Merged = nil, nil
	if _, err := event.FromRecord(at, 1, nil, []byte("v"), e.Append(nil)); !errors.Is(err, event.ErrMalformed) {
		t.Errorf("foreign origin: %v", err)
	}
	at.Region = 1
	if _, err := event.FromRecord(at, 1, nil, nil, e.Append(nil)); !errors.Is(err, event.ErrMalformed) {
		t.Errorf("put without value: %v", err)
	}
	if _, err := event.FromRecord(at, 1, nil, []byte{}, e.Append(nil)); err != nil {
		t.Errorf("empty value: %v", err)
	}
}

func TestReserved(t *testing.T) {
	for _, h := range []string{"gg-v", "GG-x", "gG-"} {
		if _, found := event.Reserved([]event.Header{{Key: "a"}, {Key: h}}); !found {
			t.Errorf("%q passes", h)
		}
	}
	for _, h := range []string{"gg", "xgg-v", "", "g-g"} {
		if _, found := event.Reserved([]event.Header{{Key: h}}); found {
			t.Errorf("%q is refused", h)
		}
	}
}

func TestFingerprintCoversTheRequest(t *testing.T) {
	base := goldenRequest().Fingerprint()
	same := goldenRequest()
	same.Headers = append(same.Headers, event.Header{Key: "gg-v", Value: []byte{1}})
	same.Headers[2].Value = []byte("application/json")
	if same.Fingerprint() != base {
		t.Error("content-type or gg- headers change the fingerprint")
	}
	for name, change := range map[string]func(*event.Request){
		"topic":          func(q *event.Request) { q.Topic = "flight" },
		"key":            func(q *event.Request) { q.Key = nil },
		"empty key":      func(q *event.Request) { q.Key = []byte{} },
		"op":             func(q *event.Request) { q.Op = event.Delete },
		"value":          func(q *event.Request) { q.Value = nil },
		"header value":   func(q *event.Request) { q.Headers[1].Value = []byte{} },
		"header order":   func(q *event.Request) { slices.Reverse(q.Headers[:2]) },
		"partition":      func(q *event.Request) { q.Partition = 0 },
		"fewer headers":  func(q *event.Request) { q.Headers = q.Headers[:1] },
		"header renamed": func(q *event.Request) { q.Headers[0].Key = "srd" },
	} {
		q := goldenRequest()
		change(q)
		if q.Fingerprint() == base {
			t.Errorf("%s does not change the fingerprint", name)
		}
	}
}

func TestDotText(t *testing.T) {
	d := event.Dot{Region: 1, Partition: 3, Offset: 4711}
	if got := d.Format(twoRegions); got != "us/0/3/4711" {
		t.Errorf("Format = %s", got)
	}
	if back, err := event.ParseDot("us/0/3/4711", twoRegions); err != nil || back != d {
		t.Errorf("ParseDot = %v, %v", back, err)
	}
	for _, bad := range []string{"", "us/0/3", "xx/0/3/1", "us/70000/3/1", "us/0/-1/1", "us/0/3/-1", "us/0/3/1/1"} {
		if _, err := event.ParseDot(bad, twoRegions); err == nil {
			t.Errorf("ParseDot(%q) succeeded", bad)
		}
	}
}

func genVector(t *rapid.T) event.Vector {
	var v event.Vector
	for range rapid.IntRange(0, 4).Draw(t, "entries") {
		v[rapid.IntRange(1, 15).Draw(t, "region")] = event.Point{
			Incarnation: rapid.Uint16().Draw(t, "incarnation"),
			Next:        rapid.Int64Range(1, 1<<62).Draw(t, "next"),
		}
	}
	return v
}

func TestPositionsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tok := event.Token{Topic: event.HashTopic("x"), Partition: rapid.Int32Range(0, 1<<30).Draw(t, "p"), Vector: genVector(t), Stamp: hlc.Stamp(rapid.Uint64().Draw(t, "s"))}
		if back, err := event.ParseToken(tok.String()); err != nil || back != tok {
			t.Fatalf("token %+v: %+v, %v", tok, back, err)
		}
		c := event.Cursor{View: event.View(rapid.IntRange(0, 16).Draw(t, "view")), Visible: 3, At: map[int32]event.Vector{}}
		for range rapid.IntRange(0, 5).Draw(t, "partitions") {
			if v := genVector(t); !v.IsZero() {
				c.At[rapid.Int32Range(0, 1000).Draw(t, "partition")] = v
			}
		}
		back, err := event.ParseCursor(c.String())
		if err != nil || !reflect.DeepEqual(back, c) {
			t.Fatalf("cursor %+v: %+v, %v", c, back, err)
		}
	})
}

func TestVectorLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := genVector(t), genVector(t)
		j := a
		j.Join(&b)
		k := b
		k.Join(&a)
		if j != k || !j.CoversAll(&a) || !j.CoversAll(&b) {
			t.Fatalf("join of %v and %v: %v, %v", a, b, j, k)
		}
		d := event.Dot{Region: event.RegionID(rapid.IntRange(1, 15).Draw(t, "r")), Incarnation: rapid.Uint16().Draw(t, "i"), Offset: rapid.Int64Range(0, 1<<62).Draw(t, "o")}
		if j.Covers(d) != (a.Covers(d) || b.Covers(d)) {
			t.Fatalf("covers %v: join %v of %v, %v", d, j, a, b)
		}
		v := a
		v.Advance(d)
		if !v.Covers(d) || !v.CoversAll(&a) {
			t.Fatalf("%v advanced by %v = %v", a, d, v)
		}
	})
}

func TestLessIsATotalOrder(t *testing.T) {
	gen := func(t *rapid.T, name string) *event.Event {
		ev := &event.Event{At: event.Dot{Region: event.RegionID(rapid.IntRange(1, 2).Draw(t, name)), Offset: rapid.Int64Range(0, 1).Draw(t, name)}}
		ev.Stamp, ev.ID[0] = hlc.Stamp(rapid.IntRange(0, 1).Draw(t, name)), rapid.ByteRange(0, 1).Draw(t, name)
		return ev
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := gen(t, "a"), gen(t, "b"), gen(t, "c")
		if event.Less(a, b) && event.Less(b, a) || event.Less(a, a) {
			t.Fatalf("not asymmetric: %+v %+v", a, b)
		}
		if !event.Less(a, b) && !event.Less(b, a) && (a.Stamp != b.Stamp || a.At != b.At || a.ID != b.ID) {
			t.Fatalf("not total: %+v %+v", a, b)
		}
		if event.Less(a, b) && event.Less(b, c) && !event.Less(a, c) {
			t.Fatalf("not transitive: %+v %+v %+v", a, b, c)
		}
	})
}

func FuzzDecode(f *testing.F) {
	e := golden()
	for _, h := range e.Append(nil) {
		f.Add(h.Key, h.Value, uint8(3))
	}
	f.Fuzz(func(t *testing.T, name string, value []byte, at uint8) {
		e := golden()
		hs := e.Append(nil)
		hs[int(at)%len(hs)] = event.Header{Key: name, Value: value}
		env, rest, stamped, err := event.Decode(hs)
		if err != nil || !stamped {
			return
		}
		again, _, _, err := event.Decode(env.Append(rest))
		if err != nil || !reflect.DeepEqual(again, env) {
			t.Fatalf("%+v does not survive: %+v, %v", env, again, err)
		}
	})
}

func FuzzParsePosition(f *testing.F) {
	f.Add(goldenToken().String())
	f.Add(goldenCursor().String())
	f.Add(goldenToken().String() + "\n")
	f.Add("\r" + goldenCursor().String())
	f.Fuzz(func(t *testing.T, text string) {
		if tok, err := event.ParseToken(text); err == nil && tok.String() != text {
			t.Fatalf("token %q is also %q", text, tok)
		}
		if c, err := event.ParseCursor(text); err == nil && c.String() != text {
			t.Fatalf("cursor %q is also %q", text, c)
		}
	})
}
