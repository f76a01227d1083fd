package view

import (
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

func goldenVector() vectorRecord {
	x := vectorRecord{Position: conflict.Start(), Ownership: 7, Incarnations: 2, PolicyCut: 1}
	x.Restricted = 1 << 2
	x.Vector = event.Vector{1: {Next: 4712}, 2: {Incarnation: 1, Next: 94}}
	x.Barriers[1], x.Barriers[3] = 300, 0
	x.Stamp = 0x01a226bf497b0007
	x.Frontier = event.Vector{1: {Next: 5}}
	return x
}

// goldenTable has a log that was cut once and owned again.
func goldenTable() *event.ValidityTable {
	a := &event.ValidityTable{Revision: 7}
	a.Logs[2] = event.Tenures{Known: 34, List: []event.Tenure{
		{Epoch: 18, Ended: true, Cut: []event.Point{{Next: 93}}},
		{Epoch: 34, Start: []event.Point{{Next: 96}}},
	}}
	return a
}

func goldenOrphan() conflict.Orphaned {
	return conflict.Orphaned{
		At: event.Dot{Region: 2, Partition: 3, Offset: 94}, ID: event.ID{1, 0xa2}, Stamp: 0x01a226bf497b0007, Timestamp: 1796000000123,
		Epoch: 18, Op: event.Put, Key: []byte("DTW"), Idempotency: event.IdempotencyKey{15: 1}, Instead: event.Dot{Region: 1, Partition: 3, Offset: 4711},
	}
}

func goldenEntity() conflict.Entity {
	at := event.Dot{Region: 1, Partition: 3, Offset: 4711}
	ev := event.Event{
		At: at, Stamped: true, Timestamp: 1796000000123, Key: []byte("DTW"), Value: []byte("{}"),
		Headers: []event.Header{{Key: "src", Value: []byte("hi")}, {Key: "flag"}},
		Envelope: event.Envelope{
			ID: event.ID{1, 0xa2}, Region: 1, Barrier: 300, Epoch: 17, Stamp: 0x01a226bf497b0007,
			Context: event.Vector{2: {Incarnation: 1, Next: 94}}, Op: event.Put, Key: event.IdempotencyKey{15: 1}, Fingerprint: event.Fingerprint{15: 2},
		},
	}
	plain := event.Event{At: event.Dot{Region: 2, Incarnation: 1, Partition: 3, Offset: 93}, Timestamp: 5, Key: []byte("DTW")}
	plain.Region, plain.Envelope.Incarnation, plain.Stamp, plain.Op = 2, 1, hlc.FromMillis(5), event.Delete
	return conflict.Entity{
		State: conflict.State{
			Live:  []conflict.Live{{Event: ev, Copies: []event.Dot{{Region: 2, Partition: 3, Offset: 9}}}, {Event: plain}},
			Cover: event.Vector{2: {Incarnation: 1, Next: 95}},
		},
		Shown: at,
		Reported: []conflict.Reported{
			{Lost: plain.At, Won: conflict.Party{At: at, ID: event.ID{1, 0xa2}, Stamp: 0x01a226bf497b0007}, Stale: true},
			{Lost: at},
		},
	}
}

// goldenLeftOut is goldenEntity with both values in the log only; one of them is null.
func goldenLeftOut() conflict.Entity {
	e := goldenEntity()
	for i := range e.Live {
		ev := &e.Live[i].Event
		ev.Value, ev.Headers, ev.LeftOut = nil, nil, true
	}
	return e
}

// goldenTracked is goldenEntity, written under a frontier.
func goldenTracked() conflict.Entity {
	e := goldenEntity()
	e.Tracked, e.Latest = true, event.Vector{1: {Next: 4712}}
	return e
}

func goldenBase() conflict.Base {
	e := goldenLeftOut()
	e.Live[0] = goldenEntity().Live[0]
	return conflict.Base{State: conflict.State{Live: e.Live, Cover: e.Cover}, Since: event.Vector{1: {Next: 4712}, 2: {Incarnation: 1, Next: 94}}}
}

func goldenTwin() conflict.Twin {
	return conflict.Twin{Key: event.IdempotencyKey{15: 1}, Copies: []conflict.TwinCopy{
		{At: event.Dot{Region: 1, Partition: 3, Offset: 4711}, Stamp: 7, Emitted: true},
		{At: event.Dot{Region: 2, Partition: 3, Offset: 93}, Stamp: 9, Group: 1},
		{At: event.Dot{Region: 2, Partition: 3, Offset: 94}, Stamp: 9, Group: 1, Emitted: true, Orphan: true},
	}}
}

// TestStampOfEarlierVersions: earlier versions noted stamps of records without a gateway,
// too. One that no gateway can have made is forgotten, once; all others count.
func TestStampOfEarlierVersions(t *testing.T) {
	now := time.UnixMilli(1_796_000_000_000)
	for _, tc := range []struct {
		ms   int64
		any  bool
		want bool // kept
	}{
		{now.UnixMilli(), true, true},
		{now.UnixMilli() + 5000, true, true},
		{now.UnixMilli() + 5001, true, false},
		{now.UnixMicro(), true, false},
		{now.UnixMilli() + 5001, false, true}, // the wall was set back: the clock must wait
	} {
		x := vectorRecord{anyStamp: tc.any}
		x.Stamp = hlc.FromMillis(tc.ms)
		x.boundStamp(now)
		if kept := x.Stamp == hlc.FromMillis(tc.ms); kept != tc.want || !kept && x.Stamp != 0 || x.anyStamp {
			t.Errorf("%+v: stamp %v, any %v", tc, x.Stamp, x.anyStamp)
		}
	}
}

// TestStateGolden holds the bytes against docs/format/state.md.
func TestStateGolden(t *testing.T) {
	doc, err := os.ReadFile("../../docs/format/state.md")
	if err != nil {
		t.Fatal(err)
	}
	vec, ent, tw := goldenVector(), goldenEntity(), goldenTwin()
	cp := event.Vector{1: {Next: 4712}, 2: {Incarnation: 1}}
	plain, orphan := goldenVector(), goldenOrphan()
	vec.Validity, vec.Revoking, vec.Reached = goldenTable(), 9, 513
	needed := vec
	needed.Needed, needed.NeededBarriers[1] = event.Vector{1: {Next: 4}}, 3
	unsettled := goldenVector()
	unsettled.Frontier = event.Vector{}
	short, tracked, base := goldenLeftOut(), goldenTracked(), goldenBase()
	for name, b := range map[string][]byte{
		"vector key": vectorKey(), "vector": needed.append(nil), "vector without a table": plain.append(nil),
		"vector without a frontier": unsettled.append(nil), "entity under a frontier": appendEntity(nil, &tracked),
		"base key": baseKey([]byte("DTW")), "base": appendBase(nil, &base),
		"orphan key": orphanKey(orphan.At), "orphan": appendOrphan(nil, &orphan),
		"entity key": entityKey([]byte("DTW")), "entity": appendEntity(nil, &ent), "entity with a value left out": appendEntity(nil, &short),
		"twin key": twinKey(tw.Key), "twin": appendTwin(nil, &tw),
		"checkpoint key": checkpointKey(512), "checkpoint": appendCheckpoint(nil, &cp),
	} {
		if line := "| " + name + " | `" + hex.EncodeToString(b) + "` |"; !strings.Contains(string(doc), line) {
			t.Errorf("docs/format/state.md lacks\n%s", line)
		}
	}
	for _, want := range []vectorRecord{vec, plain, needed, unsettled} {
		if got, err := parseVector(want.append(nil)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("vector %+v: %v", got, err)
		}
	}
	if got, err := parseEntity([]byte("DTW"), appendEntity(nil, &tracked)); err != nil || !reflect.DeepEqual(got, tracked) {
		t.Errorf("entity\n%+v, want\n%+v: %v", got, tracked, err)
	}
	if got, err := parseBase([]byte("DTW"), appendBase(nil, &base)); err != nil || !reflect.DeepEqual(got, base) {
		t.Errorf("base\n%+v, want\n%+v: %v", got, base, err)
	}
	// The versions before, as they stand in the page.
	_, old, _ := strings.Cut(string(doc), "| vector, version 1 | `")
	old, _, _ = strings.Cut(old, "`")
	b, err := hex.DecodeString(old)
	plain.anyStamp = true
	if got, perr := parseVector(b); err != nil || perr != nil || !reflect.DeepEqual(got, plain) {
		t.Errorf("vector of version 1: %+v: %v, %v", got, err, perr)
	}
	_, old, _ = strings.Cut(string(doc), "| vector, version 2 | `")
	old, _, _ = strings.Cut(old, "`")
	b, err = hex.DecodeString(old)
	vec.anyStamp = true
	if got, perr := parseVector(b); err != nil || perr != nil || !reflect.DeepEqual(got, vec) {
		t.Errorf("vector of version 2: %+v: %v, %v", got, err, perr)
	}
	_, old, _ = strings.Cut(string(doc), "| vector, version 3 | `")
	old, _, _ = strings.Cut(old, "`")
	b, err = hex.DecodeString(old)
	vec.anyStamp = false
	if got, perr := parseVector(b); err != nil || perr != nil || !reflect.DeepEqual(got, vec) {
		t.Errorf("vector of version 3: %+v: %v, %v", got, err, perr)
	}
	if got, err := parseOrphan(orphanKey(orphan.At), appendOrphan(nil, &orphan), 3); err != nil || !reflect.DeepEqual(got, orphan) {
		t.Errorf("orphan %+v: %v", got, err)
	}
	if got, err := parseEntity([]byte("DTW"), appendEntity(nil, &ent)); err != nil || !reflect.DeepEqual(got, ent) {
		t.Errorf("entity\n%+v, want\n%+v: %v", got, ent, err)
	}
	if got, err := parseEntity([]byte("DTW"), appendEntity(nil, &short)); err != nil || !reflect.DeepEqual(got, short) {
		t.Errorf("entity\n%+v, want\n%+v: %v", got, short, err)
	}
	if got, err := parseTwin(tw.Key, appendTwin(nil, &tw)); err != nil || !reflect.DeepEqual(got, tw) {
		t.Errorf("twin %+v: %v", got, err)
	}
	if got, err := parseCheckpoint(checkpointKey(512), appendCheckpoint(nil, &cp)); err != nil || got != (Checkpoint{512, cp}) {
		t.Errorf("checkpoint %+v: %v", got, err)
	}
}

// Bytes that are not a record are an error, never a panic or another record.
func TestParseAnything(t *testing.T) {
	vec, ent, tw := goldenVector(), goldenEntity(), goldenTwin()
	cp := event.Vector{1: {Next: 4712}}
	orphan, short, tracked, base := goldenOrphan(), goldenLeftOut(), goldenTracked(), goldenBase()
	vec.Validity = goldenTable()
	vec.Needed, vec.NeededBarriers[1] = event.Vector{1: {Next: 4}}, 3
	for name, x := range map[string]struct {
		bytes []byte
		parse func([]byte) error
	}{
		"vector":     {vec.append(nil), func(b []byte) error { _, err := parseVector(b); return err }},
		"entity":     {appendEntity(nil, &ent), func(b []byte) error { _, err := parseEntity(nil, b); return err }},
		"left out":   {appendEntity(nil, &short), func(b []byte) error { _, err := parseEntity(nil, b); return err }},
		"tracked":    {appendEntity(nil, &tracked), func(b []byte) error { _, err := parseEntity(nil, b); return err }},
		"base":       {appendBase(nil, &base), func(b []byte) error { _, err := parseBase(nil, b); return err }},
		"twin":       {appendTwin(nil, &tw), func(b []byte) error { _, err := parseTwin(tw.Key, b); return err }},
		"checkpoint": {appendCheckpoint(nil, &cp), func(b []byte) error { _, err := parseCheckpoint(checkpointKey(1), b); return err }},
		"orphan":     {appendOrphan(nil, &orphan), func(b []byte) error { _, err := parseOrphan(orphanKey(orphan.At), b, 3); return err }},
		"copies":     {appendCopies(nil, []conflict.Copy{{At: event.Dot{Region: 1}, Entity: []byte("k")}}), func(b []byte) error { _, err := parseCopies(b, 0); return err }},
		"meta": {appendMeta(nil, &conflict.Meta{At: event.Dot{Region: 1}, Context: cp}), func(b []byte) error {
			_, err := parseMeta(b)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := x.parse(x.bytes); err != nil {
				t.Fatal(err)
			}
			for i := range x.bytes {
				if x.parse(x.bytes[:i]) == nil && name != "copies" {
					t.Fatalf("%d of %d bytes are taken for a record", i, len(x.bytes))
				}
			}
			if x.parse(append(x.bytes[:len(x.bytes):len(x.bytes)], 0)) == nil {
				t.Fatal("a byte left over is not refused")
			}
			rapid.Check(t, func(t *rapid.T) {
				b := append([]byte(nil), x.bytes...)
				for range rapid.IntRange(1, 4).Draw(t, "flips") {
					b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
				}
				_ = x.parse(b)
			})
		})
	}
}

func TestCheckpointChain(t *testing.T) {
	var c checkpoints
	at := func(i int64) event.Vector { return event.Vector{1: {Next: i}} }
	written := map[int64]bool{}
	for i := int64(1); i <= 5000; i++ {
		c.add(Checkpoint{i * 10, at(i)}, false)
		c.add(Checkpoint{i * 10, at(i + 1)}, false) // the first at an offset stays
		if x, due := c.due(); due {
			written[x.Offset] = true
			c.add(x, true)
		}
		for _, off := range c.thin() {
			if !written[off] {
				t.Fatalf("%d was not written down", off)
			}
			delete(written, off)
		}
	}
	if len(c.list) > maxCheckpoints+1 || len(written) > maxCheckpoints {
		t.Fatalf("%d checkpoints, %d written", len(c.list), len(written))
	}
	for i := int64(0); i <= 5000; i += 7 {
		v := at(i)
		from := c.start(&v)
		if from > i*10 || i > 4900 && from != i*10 {
			t.Fatalf("reader of %d starts at %d", i, from)
		}
		if got := c.coveredAt(i * 10); got[1].Next > i || i > 4900 && got != v {
			t.Fatalf("covered at %d: %v", i*10, got)
		}
	}
	if c.list[0].Offset > 200 {
		t.Fatalf("the oldest is %d", c.list[0].Offset)
	}
}
