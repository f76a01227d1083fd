package replicate

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/testbench/script"
)

// TestScripts plays the scripts of testdata/script: each explains one protocol of a
// link and shows, under every command, what the core of the shard asks for. With
// -rewrite the traces are written again.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/script", func(t *testing.T, trace *script.Trace) func(*testing.T, *script.Command) {
		return (&linkScript{hand: newHand(t), Trace: trace}).run
	})
}

// linkScript is one shard of the link from us to eu, with the single stream
// orders/0, whose effects are told in words.
type linkScript struct {
	*hand
	*script.Trace
	guard    *residency.Guard
	revision uint64 // of the register
}

func (s *linkScript) event(ev any) {
	s.t.Helper()
	for _, e := range s.core.Step(s.now, ev) {
		s.effect(e)
	}
}

func (s *linkScript) effect(e any) {
	switch e := e.(type) {
	case Init:
		s.Say("target: initialise the producer; a transaction that its last owner left open is aborted")
	case ReadGeneration:
		s.Say("target: read the generation record")
	case ReadPositions:
		s.Say("target: read the committed positions")
	case List:
		s.Say("both: list where the logs end")
	case Read:
		s.read = e.Number
		s.Say("source: fetch orders/0 from offset %d", e.From[part].Offset)
	case Leave:
		s.Say("source: fetch orders/0 no longer")
	case Audit:
		for _, d := range e.Decided {
			for _, r := range d.Runs {
				s.Say("audit: %s", strings.TrimSpace(fmt.Sprintf("%d..%d %s %s", r.From, r.Until-1, r.Code, r.Rule)))
			}
		}
	case Produce:
		s.produce(e)
	case End:
		s.Say("target: commit the transaction")
	case Report:
		s.Say("people: %s, offsets %d to %d", e.Incident.Kind, e.Incident.From, e.Incident.Until)
	case Stop:
		s.Say("shard: stop: %v", e.Err)
	}
}

// produce tells the batches of one flight.
func (s *linkScript) produce(p Produce) {
	s.Say("target: send in one transaction")
	for _, b := range p.Batches {
		if b.Topic != "pos" && b.Topic != "runs" {
			keys := ""
			if err := txn.NewDecoder(txn.Limits{}).Each(b.Batch, func(r txn.Record) error { keys += " " + string(r.Key); return nil }); err != nil {
				s.t.Fatal(err)
			}
			s.Say("  records of %s/%d:%s", b.Topic, b.Partition, keys)
		}
	}
	pos, runs := described(s.t, p)
	for _, r := range runs {
		s.Say("  run: offsets %d..%d of the target are %d..%d of the source, the last barrier before them %d", r.Target, r.Target+r.Count-1, r.Source, r.Source+r.Count-1, r.Barrier)
	}
	s.Say("  position: the source is covered to %d, the target to %d, last barrier %d", pos.SourceCovered, pos.TargetCovered, pos.Barrier)
}

func (s *linkScript) run(t *testing.T, c *script.Command) {
	s.t = t
	lost := c.HasArg("lost")
	var err error
	if lost {
		err = txn.ErrUnclear
	}
	switch c.Cmd {
	case "assign": // the discovery gives the shard its stream, with the ruling of the policy in force
		stream := aStr
		if s.guard != nil {
			stream.Ruling = s.guard.Rule(part.Topic, "us", "eu")
			s.Say("policy: %s", stream.Ruling.Reason())
		}
		s.event(Assigned{[]Stream{stream}})
	case "policy": // a file is loaded: rules, one a line
		p, err := residency.Parse("residency.yaml", []byte("version: 1\nkind: ResidencyPolicy\nname: script\nrevision: 1\ndefault: deny\nrules:\n"+c.Input), []string{"us", "eu"})
		if err != nil {
			c.Fatalf(t, "%v", err)
		}
		if s.guard == nil {
			s.guard = residency.NewGuard(p)
		} else {
			s.guard.Loaded(p)
		}
		s.Say("policy: version %d is in force", s.guard.Version())
		s.event(PolicyChanged{s.guard.Version()})
	case "register": // what the ownership register says: intervals, one a line
		s.owned(t, c)
	case "start":
		s.event(Start{})
	case "initialised":
		s.event(Inited{Err: err})
	case "generation":
		found := gen1
		c.MaybeScanArgs(t, "number", &found.Number)
		s.event(GenerationRead{Found: Found{found, true}})
	case "positions": // what the target has committed
		s.positions(t, c)
	case "listed":
		l := fresh()
		c.MaybeScanArgs(t, "target-end", &l.TargetEnd)
		s.event(Listed{Listings: map[Part]Listing{part: l}})
	case "fetched":
		s.event(s.fetched(s.items(t, c)...))
	case "audited":
		s.event(Audited{Err: err})
	case "produced": // base=(n, …): where the target has put each batch
		var bases []int64
		for _, a := range c.CmdArgs {
			for _, v := range a.Vals {
				n, err := strconv.ParseInt(v, 10, 64)
				if err != nil {
					c.Fatalf(t, "%v", err)
				}
				bases = append(bases, n)
			}
		}
		s.event(Produced{Produced: at(bases...), Epochs: map[Part]int32{part: 0}, Err: err})
	case "ended":
		s.event(Ended{Err: err})
	case "wait": // until the core wants to be woken
		if !s.core.Wake().IsZero() {
			s.now = s.core.Wake()
		}
		s.event(Tick{})
	default:
		c.Fatalf(t, "no such command")
	}
}

func (s *linkScript) positions(t *testing.T, c *script.Command) {
	if len(c.CmdArgs) == 0 {
		s.event(PositionsRead{})
		return
	}
	pos := offsets.Position{Barrier: -1, Target: idB}
	c.ScanArgs(t, "source", &pos.SourceCovered)
	c.ScanArgs(t, "target", &pos.TargetCovered)
	s.event(PositionsRead{Positions: []PositionRecord{{Source: idA, Position: pos}}})
}

// owned has the register say which offsets of us's log are authoritative. The first
// use gives the core a register.
func (s *linkScript) owned(t *testing.T, c *script.Command) {
	var spans []span
	for line := range strings.Lines(c.Input) {
		from, until, ok := strings.Cut(strings.TrimSpace(line), "..")
		x := span{until: event.NoCut}
		var err error
		if x.from, err = strconv.ParseInt(from, 10, 64); err != nil || !ok {
			c.Fatalf(t, "want <start>..<cut>: %s", line)
		}
		if until != "" {
			if x.until, err = strconv.ParseInt(until, 10, 64); err != nil {
				c.Fatalf(t, "%v", err)
			}
		}
		spans = append(spans, x)
	}
	if !s.core.cfg.HasRegister {
		s.core = newOwnedHand(t).core
	}
	s.revision++
	s.event(known(owned(s.revision, spans...)))
}

// items are what was fetched: lines of <offset>: barrier | skip | records <key> ….
func (s *linkScript) items(t *testing.T, c *script.Command) (all []Item) {
	for line := range strings.Lines(c.Input) {
		at, what, _ := strings.Cut(strings.TrimSpace(line), ": ")
		base, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			c.Fatalf(t, "%v", err)
		}
		words := strings.Fields(what)
		switch words[0] {
		case "barrier":
			all = append(all, Item{ItemBarrier, base, base + 1, nil, -1})
		case "skip":
			all = append(all, Item{ItemSkip, base, base + 1, nil, -1})
		case "records":
			var b txn.Builder
			for _, key := range words[1:] {
				b.Add(&txn.Record{Key: []byte(key), Value: make([]byte, 20_000)}) // too large to be joined
			}
			batch, err := b.Batch(0)
			if err != nil {
				c.Fatalf(t, "%v", err)
			}
			binary.BigEndian.PutUint64(batch, uint64(base)) // as a log gives it
			all = append(all, Item{ItemData, base, base + int64(len(words)-1), batch, -1})
		default:
			c.Fatalf(t, "no such item: %s", line)
		}
	}
	return all
}
