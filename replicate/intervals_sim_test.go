package replicate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
)

// ownedLog is a source partition whose region comes to own and to lose its unit.
type ownedLog struct {
	stream   Stream
	items    []Item
	public   map[int64]bool // of each record, by offset
	barriers []int64
	end      int64
	visible  int64          // end of what is committed so far
	begin    int64          // below it retention has taken all
	gone     map[int64]bool // offsets that it took before the link came to them

	spans []span
	stage int // how much of spans is known: 2i+1 of them i has started, 2i+2 it has ended

	cursor  int64 // of the reader, -1 while it is left
	target  targetLog
	pos     *offsets.Position
	runs    map[int64]offsets.Run
	verdict map[int64]residency.Code
}

// targetLog is the remote partition.
type targetLog struct {
	end     int64
	records map[int64]int64 // committed: source offset of each, by target offset
	open    map[int64]int64 // of the open transaction
}

func newOwnedLog(t rapid.TB, rnd *rand.Rand, number int32, ruling *residency.Ruling) *ownedLog {
	l := &ownedLog{stream: aStr, public: map[int64]bool{}, cursor: -1, runs: map[int64]offsets.Run{}, verdict: map[int64]residency.Code{}, gone: map[int64]bool{}}
	l.stream.Number, l.stream.Ruling = number, ruling
	l.target = targetLog{records: map[int64]int64{}, open: map[int64]int64{}}
	for range 1 + rnd.IntN(20) {
		l.end += rnd.Int64N(3) * rnd.Int64N(2) * rnd.Int64N(2) // compaction may have taken whole batches
		switch rnd.IntN(6) {
		case 0:
			n := 1 + rnd.Int64N(3)
			l.items = append(l.items, Item{Kind: ItemSkip, Base: l.end, Next: l.end + n, LeaderEpoch: -1})
			l.end += n
		case 1:
			l.items = append(l.items, Item{Kind: ItemBarrier, Base: l.end, Next: l.end + 1, LeaderEpoch: -1})
			l.barriers = append(l.barriers, l.end)
			l.end++
		default:
			l.batch(t, rnd)
		}
	}
	at := int64(0)
	for range rnd.IntN(5) {
		s := span{from: at + rnd.Int64N(6)*rnd.Int64N(2)}
		s.until = s.from + rnd.Int64N(12)
		l.spans = append(l.spans, s)
		at = s.until
	}
	return l
}

// batch adds a batch of some kind, with holes if it is not compressed.
func (l *ownedLog) batch(t rapid.TB, rnd *rand.Rand) {
	n, codec := 1+rnd.IntN(8), kgo.CompressionCodecType(rnd.IntN(3))
	size := []int{1, 50, 4000}[rnd.IntN(3)]
	var full, again txn.Builder
	for i := range n {
		key := "prv"
		if rnd.IntN(2) == 0 {
			key = "pub"
		}
		v := fmt.Appendf(nil, "%d-%s", l.end+int64(i), bytes.Repeat([]byte{'x'}, size))
		full.Add(&txn.Record{Key: []byte(key), Value: v, Timestamp: 1000 + int64(i)})
	}
	b, err := full.Batch(kgo.CodecNone)
	if err != nil {
		t.Fatal(err)
	}
	var kept []txn.Raw
	holes := codec == kgo.CodecNone && rnd.IntN(2) == 0
	opened, err := txn.NewDecoder(txn.Limits{}).Open(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.EachRaw(false, func(r txn.Raw) error {
		if holes && rnd.IntN(3) == 0 {
			return nil
		}
		rec, err := txn.NewDecoder(txn.Limits{}).Decode(r)
		l.public[l.end+r.Offset] = string(rec.Key) == "pub"
		kept = append(kept, r)
		again.AddRaw(r)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	item := Item{Kind: ItemData, Base: l.end, Next: l.end + int64(n), LeaderEpoch: 0}
	switch {
	case len(kept) == 0:
		item.Kind = ItemSkip
	case len(kept) < n:
		item.Batch = withHoles(b, kept)
	default:
		if item.Batch, err = again.Batch(codec); err != nil {
			t.Fatal(err)
		}
	}
	if item.Batch != nil {
		binary.BigEndian.PutUint64(item.Batch, uint64(l.end))
	}
	l.items = append(l.items, item)
	l.end = item.Next
}

// known is what the register says at the log's stage.
func (l *ownedLog) known() *event.ValidityTable { return l.knownAt(l.stage) }

func (l *ownedLog) knownAt(stage int) *event.ValidityTable {
	var spans []span
	for i, s := range l.spans {
		switch {
		case stage <= 2*i:
			return owned(uint64(stage)+1, spans...)
		case stage == 2*i+1:
			s.until = event.NoCut
		}
		spans = append(spans, s)
	}
	return owned(uint64(stage)+1, spans...)
}

// inLapse tells whether an offset does not count, as far as is known.
func (l *ownedLog) inLapse(offset int64) bool {
	a := l.known()
	return a.Judge(event.Dot{Region: origin, Offset: offset}, 0) != event.Authoritative
}

// ownedLink carries out what a core says, with faults.
type ownedLink struct {
	t       rapid.TB
	rnd     *rand.Rand
	logs    map[Part]*ownedLog
	order   []Part
	core    *Core
	now     time.Time
	reading int
	sent    []txn.PartitionBatch // of the open transaction

	recorded []Incident
	queue    []any
	faults   bool
	calm     bool // no fault has happened
}

func (k *ownedLink) chance(one int) bool {
	hit := k.faults && k.rnd.IntN(one) == 0
	k.calm = k.calm && !hit
	return hit
}

// restart is a process that restarts: only what was committed is left.
func (k *ownedLink) restart() {
	k.abort()
	k.core = NewCore(CoreConfig{Generation: gen1, Positions: "pos", Runs: "runs", Origin: origin, HasRegister: true})
	k.queue = nil
	for _, l := range k.logs {
		l.cursor = -1
	}
	k.step(Start{})
	var streams []Stream
	for _, p := range k.order {
		streams = append(streams, k.logs[p].stream)
	}
	k.tell()
	k.step(Assigned{streams})
}

// abort ends the open transaction without effect; its records leave a gap.
func (k *ownedLink) abort() {
	for _, l := range k.logs {
		if len(l.target.open) > 0 {
			l.target.end++
		}
		clear(l.target.open)
	}
	k.sent = nil
}

// commit commits the open transaction's records.
func (k *ownedLink) commit() {
	for _, l := range k.logs {
		if len(l.target.open) > 0 {
			l.target.end++
		}
		maps.Copy(l.target.records, l.target.open)
		clear(l.target.open)
	}
	for _, b := range k.sent {
		if b.Topic == "us.orders" {
			continue
		}
		k.must(txn.NewDecoder(txn.Limits{}).Each(b.Batch, func(r txn.Record) error {
			if x, incident, err := ParseIncident(r.Key, r.Value); incident {
				k.recorded = append(k.recorded, x)
				return err
			}
			if b.Topic == "pos" {
				_, number, err := offsets.ParsePositionKey(r.Key)
				k.must(err)
				pos, err := offsets.ParsePosition(r.Value)
				k.logs[Part{"orders", number}].pos = &pos
				return err
			}
			_, number, first, err := offsets.ParseKey(r.Key)
			k.must(err)
			l := k.logs[Part{"orders", number}]
			if r.Value == nil {
				delete(l.runs, first)
				return nil
			}
			runs, err := offsets.ParseRuns(first, r.Value)
			for _, run := range runs {
				l.runs[run.Target] = run
			}
			return err
		}))
	}
	k.sent = nil
}

func (k *ownedLink) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

// step gives an event and puts what ends its effects into the queue.
func (k *ownedLink) step(ev any) {
	for _, e := range k.core.Step(k.now, ev) {
		if p, ok := e.(Produce); ok {
			k.check(p)
		}
		if k.chance(60) {
			k.restart()
			return
		}
		if next := k.do(e); next != nil {
			k.queue = append(k.queue, next)
		}
	}
}

// check is the promise: nothing that is about to be sent lies past a cut that is
// known now.
func (k *ownedLink) check(p Produce) {
	for _, b := range p.Batches {
		if b.Topic != "us.orders" {
			continue
		}
		l := k.logs[Part{"orders", b.Partition}]
		k.must(txn.NewDecoder(txn.Limits{}).Each(b.Batch, func(r txn.Record) error {
			if at := offsetOf(k.t, r.Value); l.inLapse(at) {
				k.t.Fatalf("%d of partition %d is sent; known is %+v", at, b.Partition, l.known().Logs[origin])
			}
			return nil
		}))
	}
}

func offsetOf(t rapid.TB, value []byte) (at int64) {
	if _, err := fmt.Sscanf(string(value), "%d-", &at); err != nil {
		t.Fatal(err)
	}
	return at
}

func (k *ownedLink) do(effect any) any {
	switch e := effect.(type) {
	case Init:
		k.abort()
		return Inited{}
	case ReadGeneration:
		return GenerationRead{Found: Found{gen1, true}}
	case ReadPositions:
		out := PositionsRead{Incidents: slices.Clone(k.recorded)}
		for _, p := range k.order {
			if l := k.logs[p]; l.pos != nil {
				out.Positions = append(out.Positions, PositionRecord{Source: l.stream.Source, Number: l.stream.Number, Position: *l.pos})
			}
		}
		return out
	case List:
		out := Listed{Listings: map[Part]Listing{}}
		for _, s := range e.Streams {
			l := k.logs[s.Part]
			out.Listings[s.Part] = Listing{SourceStart: l.begin, SourceEnd: l.visible, SourceEpochEnd: -1, Target: idB, TargetEnd: l.target.end, TargetEpochEnd: -1}
		}
		return out
	case Read:
		k.reading = e.Number
		for _, p := range k.order {
			k.logs[p].cursor = -1
			if from, ok := e.From[p]; ok {
				k.logs[p].cursor = from.Offset
			}
		}
	case Leave:
		k.logs[e.Part].cursor = -1
	case Audit:
		for _, d := range e.Decided {
			for _, r := range d.Runs {
				for o := r.From; o < r.Until; o++ {
					k.logs[d.Stream.Part].verdict[o] = r.Code
				}
			}
		}
		return Audited{}
	case Produce:
		return k.produce(e)
	case End:
		switch {
		case k.chance(20):
			k.commit() // and nobody hears of it
			return Ended{txn.ErrUnclear}
		case k.chance(20):
			k.abort()
			return Ended{txn.ErrUnclear}
		}
		k.commit()
		return Ended{}
	case Report:
		if e.Incident.Kind != OrphansGone {
			k.t.Fatalf("incident %+v", e.Incident)
		}
	case Stop:
		k.t.Fatalf("stopped: %v", e.Err)
	default:
		k.t.Fatalf("effect %T", effect)
	}
	return nil
}

func (k *ownedLink) produce(e Produce) any {
	out := Produced{Epochs: map[Part]int32{}}
	if k.chance(20) {
		return Produced{Err: txn.ErrUnclear}
	}
	for _, b := range e.Batches {
		got := txn.Produced{Topic: b.Topic, Partition: b.Partition}
		if b.Topic == "us.orders" {
			p := Part{"orders", b.Partition}
			t := &k.logs[p].target
			got.Base, out.Epochs[p] = t.end, 0
			k.must(txn.NewDecoder(txn.Limits{}).Each(b.Batch, func(r txn.Record) error {
				t.open[t.end] = offsetOf(k.t, r.Value)
				t.end++
				return nil
			}))
		}
		out.Produced = append(out.Produced, got)
	}
	k.sent = append(k.sent, e.Batches...)
	if k.chance(20) {
		return Produced{Err: txn.ErrUnclear}
	}
	return out
}

// tell tells the core what is known now.
func (k *ownedLink) tell() {
	now := map[Part]*event.ValidityTable{}
	for p, l := range k.logs {
		now[p] = l.known()
	}
	k.step(IntervalsChanged{now})
}

// reveal makes more of the register known, for some log.
func (k *ownedLink) reveal(l *ownedLog) {
	if l.stage < 2*len(l.spans) {
		l.stage += 1 + k.rnd.IntN(min(2, 2*len(l.spans)-l.stage))
		k.tell()
	}
}

// fetch brings some of what can be read; false if there is nothing.
func (k *ownedLink) fetch() bool {
	ev := Fetched{Reading: k.reading}
	for _, p := range k.order {
		l := k.logs[p]
		if l.cursor < 0 || k.rnd.IntN(3) == 0 && k.faults {
			continue
		}
		f := FetchedPart{Part: p, Stable: l.visible}
		if l.cursor < l.begin {
			f.Err = &SourceError{}
			l.cursor = -1
			ev.Parts = append(ev.Parts, f)
			continue
		}
		for _, it := range l.items {
			if it.Next > l.cursor && it.Next <= l.visible && (!k.faults || k.rnd.IntN(5) > 0) {
				f.Items = append(f.Items, it)
				l.cursor = it.Next
			} else if it.Next > l.cursor {
				break
			}
		}
		if len(f.Items) > 0 {
			ev.Parts = append(ev.Parts, f)
		}
	}
	if len(ev.Parts) == 0 {
		return false
	}
	k.step(ev)
	return true
}

// turn does one thing.
func (k *ownedLink) turn() {
	l := k.logs[k.order[k.rnd.IntN(len(k.order))]]
	switch {
	case k.faults && k.rnd.IntN(12) == 0:
		k.reveal(l)
	case k.faults && k.rnd.IntN(6) == 0:
		l.grow(1 + k.rnd.IntN(3))
	case k.faults && k.rnd.IntN(20) == 0:
		l.retain(k.rnd)
	case k.chance(80):
		k.restart()
	case len(k.queue) > 0:
		ev := k.queue[0]
		k.queue = k.queue[1:]
		k.step(ev)
	case k.core.phase == phaseIdle && k.fetch():
	default:
		if at := k.core.Wake(); at.After(k.now) {
			k.now = at
		}
		k.step(Tick{})
	}
}

// grow commits more of the log.
func (l *ownedLog) grow(n int) {
	for _, it := range l.items {
		if it.Next > l.visible && n > 0 {
			l.visible = it.Next
			n--
		}
	}
}

// retain has retention take something: what was copied, and past a cut that the
// link knows also what it has not come to.
func (l *ownedLog) retain(rnd *rand.Rand) {
	covered := int64(0)
	if l.pos != nil {
		covered = l.pos.SourceCovered
	}
	behind := func(until int64) bool { // now and whatever comes to be known
		for stage := l.stage; stage <= 2*len(l.spans); stage++ {
			if s := (stream{lapses: lapsesOf(l.knownAt(stage), origin, 0)}); !s.inLapse(covered, until) {
				return false
			}
		}
		return l.pos != nil
	}
	for _, it := range l.items {
		if it.Base < l.begin {
			continue
		}
		if it.Next > l.visible || it.Next > covered && !behind(it.Next) || rnd.IntN(3) == 0 {
			return
		}
		for at := max(it.Base, covered); at < it.Next; at++ {
			l.gone[at] = true
		}
		l.begin = it.Next
	}
}

// verify compares the target with the source once all is known and done.
func (k *ownedLink) verify(l *ownedLog) {
	t, part := k.t, l.stream.Number
	cut := (&stream{lapses: lapsesOf(l.known(), origin, 0)}).cut()
	if l.pos == nil && min(cut, l.end) == 0 {
		return
	}
	if l.pos == nil || l.pos.SourceCovered < min(cut, l.end) || l.pos.SourceCovered > l.end {
		t.Fatalf("partition %d: position %+v, cut %d, end %d", part, l.pos, cut, l.end)
	}
	if want := l.barrierBelow(l.pos.SourceCovered); l.pos.Barrier != want && len(l.gone) == 0 {
		t.Fatalf("partition %d: position %+v, last barrier %d", part, l.pos, want)
	}
	copied := k.verifyRuns(l)
	for at, public := range l.public {
		may := l.stream.Ruling == nil || l.stream.Ruling.Effect == residency.Allow || public
		switch {
		case copied[at] && (!may || at >= l.pos.SourceCovered):
			t.Fatalf("partition %d: %d was copied", part, at)
		case !copied[at] && may && at < l.pos.SourceCovered && !l.inLapse(at):
			t.Fatalf("partition %d: %d counts and was not copied; position %+v", part, at, l.pos)
		}
		if l.stream.Ruling == nil || at >= l.pos.SourceCovered {
			continue
		}
		code, ruled := l.verdict[at]
		ok := code == residency.Allowed && copied[at] || code == residency.Denied && !copied[at] && !may ||
			code == residency.Orphan && !copied[at] && l.inLapse(at) || l.gone[at] && !copied[at] && l.inLapse(at)
		if !ruled || !ok {
			t.Fatalf("partition %d: verdict %v on %d, copied %v, past a cut %v", part, code, at, copied[at], l.inLapse(at))
		}
	}
	if l.stream.Ruling != nil {
		for at := range l.pos.SourceCovered {
			if _, record := l.public[at]; !record && l.verdict[at] == residency.Allowed || l.verdict[at] == 0 {
				t.Fatalf("partition %d: verdict %v on %d, which is no record", part, l.verdict[at], at)
			}
		}
	}
}

// verifyRuns checks that the runs map every committed record, and gives those.
func (k *ownedLink) verifyRuns(l *ownedLog) map[int64]bool {
	t, part := k.t, l.stream.Number
	copied := map[int64]bool{}
	mapped := map[int64]int64{}
	var said []int64
	for _, first := range slices.Sorted(maps.Keys(l.runs)) {
		r := l.runs[first]
		said = append(said, r.Barriers...)
		for i := range r.Count {
			mapped[r.Target+i] = r.Source + i
			if want := l.barrierBelow(r.Source + i); r.Barrier != want && len(l.gone) == 0 {
				t.Fatalf("partition %d: run %+v, last barrier %d", part, r, want)
			}
		}
	}
	last := int64(-1)
	for _, at := range slices.Sorted(maps.Keys(l.target.records)) {
		source := l.target.records[at]
		if source <= last || at >= l.pos.TargetCovered {
			t.Fatalf("partition %d: source %d behind %d at %d; position %+v", part, source, last, at, l.pos)
		}
		last = source
		copied[source] = true
	}
	if !maps.Equal(mapped, l.target.records) {
		t.Fatalf("partition %d: runs say %v, records are %v", part, mapped, l.target.records)
	}
	if k.calm && len(l.gone) == 0 && !slices.Equal(said, l.barriers[:l.barriersBelow(last)]) {
		t.Fatalf("partition %d: runs name barriers %v of %v, last record %d", part, said, l.barriers, last)
	}
	return copied
}

func (l *ownedLog) barriersBelow(at int64) (n int) {
	for n < len(l.barriers) && l.barriers[n] < at {
		n++
	}
	return n
}

func (l *ownedLog) barrierBelow(at int64) int64 {
	if n := l.barriersBelow(at); n > 0 {
		return l.barriers[n-1]
	}
	return offsets.NoBarrier
}

// Whatever logs, batches, markers, barriers, cuts and starts look like, in whatever
// order they become known, and wherever the link is killed: nothing is sent behind
// a cut that is known, everything that counts is copied once, the position comes to
// the cut or the end, runs and barriers are exact, and each offset under a policy
// has the one verdict that tells what became of it.
func TestIntervalsHold(t *testing.T) {
	t.Parallel()
	byTopic := compiled(t, `{id: o, effect: allow, topics: [orders], from: [us], to: [eu]}`)
	byKey := compiled(t, `{id: k, effect: allow, topics: [orders], from: [us], to: [eu], when: 'key == "pub"'}`)
	rapid.Check(t, func(rt *rapid.T) {
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 5))
		k := &ownedLink{t: rt, rnd: rnd, logs: map[Part]*ownedLog{}, now: start, calm: true}
		for n := range int32(1 + rnd.IntN(2)) {
			l := newOwnedLog(rt, rnd, n, []*residency.Ruling{nil, byTopic, byKey}[rnd.IntN(3)])
			k.logs[l.stream.Part] = l
			k.order = append(k.order, l.stream.Part)
		}
		k.restart()
		k.faults = rnd.IntN(4) > 0
		if k.faults {
			for range rnd.IntN(400) {
				k.turn()
			}
		}
		// From here on all is well.
		k.faults = false
		for _, p := range k.order {
			l := k.logs[p]
			l.visible = l.end
			for l.stage < 2*len(l.spans) && rnd.IntN(4) > 0 {
				k.reveal(l)
			}
		}
		for range 300 {
			k.turn()
		}
		for _, p := range k.order {
			k.verify(k.logs[p])
		}
	})
}
