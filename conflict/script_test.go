package conflict_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/testbench/script"
)

// TestScripts plays the scripts of testdata/script: each explains what the fold makes
// of concurrent writes, twins and cuts, and shows, under every command, what it puts
// out. With -rewrite the traces are written again.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/script", func(t *testing.T, trace *script.Trace) func(*testing.T, *script.Command) {
		return (&foldScript{Trace: trace}).run
	})
}

// foldScript is the fold of one partition in one region, and the logs of us and eu
// that it reads.
type foldScript struct {
	*learner
	*script.Trace
	ids byte
}

// origins are the regions of a script, by id from 1 on.
func origins() []string { return []string{"", "us", "eu"} }

func dot(d event.Dot) string { return fmt.Sprintf("%s/%d", origins()[d.Region], d.Offset) }

func (s *foldScript) run(t *testing.T, c *script.Command) {
	switch c.Cmd {
	case "topic": // kind=entity|events policy=lww|keep
		var kind, policy string
		c.ScanArgs(t, "kind", &kind)
		c.MaybeScanArgs(t, "policy", &policy)
		cfg := conflict.Config{Kind: conflict.Events}
		if kind == "entity" {
			cfg = entities(event.LWW)
		}
		if policy == "keep" {
			cfg.Rule = event.Keep
		}
		s.learner = newLearner(cfg, len(origins())-1)
	case "fold": // records, one a line, in the order in which they arrive
		for line := range strings.Lines(c.Input) {
			it := s.record(t, c, strings.Fields(line))
			before := len(s.outs)
			if s.take(t, int(it.Origin)-1, []judged.Item{it}, false) == 0 {
				s.Say("%s waits: nothing is known yet of its epoch", dot(it.Event.At))
			}
			s.tell(before)
		}
	case "register": // what the ownership register says of a log: <region> <start>..<cut>, one a line
		before := len(s.outs)
		table := s.intervals(t, c)
		s.applyTable(t, table, 100, -1)
		s.table = table
		s.tell(before)
	case "entity":
		s.entity(t, c.CmdArgs[0].Key)
	default:
		c.Fatalf(t, "no such command")
	}
}

// record reads <region>/<offset> key=k value=v stamp=n saw=<region>/<offset> epoch=n
// idempotency=n.
func (s *foldScript) record(t *testing.T, c *script.Command, words []string) judged.Item {
	s.ids++
	ev := event.Event{At: s.dot(t, c, words[0]), Stamped: true}
	ev.Envelope = event.Envelope{ID: event.ID{s.ids}, Region: ev.At.Region, Barrier: -1, Op: event.Put, Epoch: event.FirstEpoch(ev.At.Region)}
	for _, w := range words[1:] {
		name, text, _ := strings.Cut(w, "=")
		switch name {
		case "key":
			ev.Key = []byte(text)
		case "value":
			ev.Value = []byte(text)
		case "stamp":
			ev.Stamp = hlc.FromMillis(int64(number(t, c, text)))
		case "saw": // everything up to there
			d := s.dot(t, c, text)
			ev.Context[d.Region] = event.Point{Next: d.Offset + 1}
		case "epoch": // of its region, counted from 1
			ev.Envelope.Epoch += event.Epoch(16 * (number(t, c, text) - 1))
		case "idempotency":
			ev.Envelope.Key = event.IdempotencyKey{byte(number(t, c, text))}
		default:
			c.Fatalf(t, "no such member: %s", w)
		}
	}
	return judged.Item{Origin: ev.At.Region, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: ev.At.Offset + 1}, Barrier: -1}
}

func (s *foldScript) dot(t *testing.T, c *script.Command, text string) event.Dot {
	region, offset, _ := strings.Cut(text, "/")
	for id, name := range origins() {
		if name == region && id > 0 {
			return event.Dot{Region: event.RegionID(id), Offset: int64(number(t, c, offset))}
		}
	}
	c.Fatalf(t, "no such place: %s", text)
	return event.Dot{}
}

func number(t *testing.T, c *script.Command, text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		c.Fatalf(t, "%v", err)
	}
	return n
}

func (s *foldScript) intervals(t *testing.T, c *script.Command) *event.ValidityTable {
	table := &event.ValidityTable{Revision: 1}
	if s.table != nil {
		table.Revision = s.table.Revision + 1
	}
	for line := range strings.Lines(c.Input) {
		region, span, _ := strings.Cut(strings.TrimSpace(line), " ")
		from, until, _ := strings.Cut(span, "..")
		at := s.dot(t, c, region+"/"+from)
		log := &table.Logs[at.Region]
		x := event.Tenure{Epoch: event.FirstEpoch(at.Region) + event.Epoch(16*len(log.List)), Start: []event.Point{{Next: at.Offset}}}
		if until != "" {
			x.Ended, x.Cut = true, []event.Point{{Next: int64(number(t, c, until))}}
		}
		log.List = append(log.List, x)
		log.Known = x.Epoch
	}
	return table
}

// tell says what steps have put out.
func (s *foldScript) tell(from int) {
	for _, out := range s.outs[from:] {
		for _, o := range out.Orphans {
			instead := ""
			if o.Instead.Region != 0 {
				instead = "; its record in the merged topic stands for " + dot(o.Instead) + " now"
			}
			s.Say("orphan: %s%s", dot(o.At), instead)
		}
		for i := range out.Merged {
			m := &out.Merged[i]
			what := "value " + string(m.Event.Value)
			if m.Event.Value == nil {
				what = "nothing"
			}
			note := ""
			if m.Siblings > 0 {
				note = fmt.Sprintf(", siblings %d", m.Siblings)
			}
			if m.Corrects {
				note += ", a correction"
			}
			s.Say("merged: %s: %s of %s%s", m.Event.Key, what, dot(m.Event.At), note)
		}
		for _, x := range out.Conflicts {
			s.Say("conflict: %s: %s lost to %s, %s", x.Key, dot(x.Lost.At), dot(x.Won.At), x.Reason)
		}
	}
}

func (s *foldScript) entity(t *testing.T, key string) {
	e, _, err := s.store.Entity([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	win := conflict.PolicyOf(s.cfg.Rule).Winner(e.Live)
	for i, l := range e.Live {
		mark := "sibling"
		if i == win {
			mark = "shown"
		}
		s.Say("%s: value %s of %s", mark, l.Event.Value, dot(l.Event.At))
	}
}
