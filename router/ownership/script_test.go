package ownership_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/script"
)

// TestScripts plays the scripts of testdata/script: each explains how ownership moves
// and shows, under every command, who writes what into the register and who may write
// records when. With -rewrite the traces are written again.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/script", func(t *testing.T, trace *script.Trace) func(*testing.T, *script.Command) {
		s := newOwnersScript(t)
		s.trace = trace
		return s.run
	})
}

// ownersScript is one register that stores everything at once, and an instance of us
// and one of eu that drive their cores by it. Each may have a second process under its
// name, us+ and eu+.
type ownersScript struct {
	trace     *script.Trace
	began     time.Duration
	now       time.Duration
	topology  *router.Topology
	register  []ownership.Seen
	newest    map[string]uint64 // sequence by subject
	instances map[string]*owner
	queue     []func()
	asked     uint64
}

// owner is one process of an instance.
type owner struct {
	name    string
	region  string
	id      event.RegionID
	cut     bool            // it runs, and the register does not reach it, nor it the register
	core    *ownership.Core // nil: it does not run
	mark    ownership.Mark
	lives   int
	told    string // what was said last about its right to write
	ends    int64  // of its region's log
	applied int64  // of that, by the other region
}

func newOwnersScript(t *testing.T) *ownersScript {
	t.Helper()
	topology, err := router.NewTopology(twoRegions...)
	if err != nil {
		t.Fatal(err)
	}
	return &ownersScript{
		began: time.Hour, now: time.Hour, topology: topology, newest: map[string]uint64{},
		instances: map[string]*owner{
			"us": {name: "us", region: "us", id: 1}, "us+": {name: "us+", region: "us", id: 1},
			"eu": {name: "eu", region: "eu", id: 2}, "eu+": {name: "eu+", region: "eu", id: 2},
		},
	}
}

// names of the processes, in the order in which they are served.
func (s *ownersScript) names() []string { return []string{"us", "us+", "eu", "eu+"} }

func (s *ownersScript) say(format string, args ...any) {
	s.trace.Say("%5.1f s  %s", (s.now - s.began).Seconds(), fmt.Sprintf(format, args...))
}

func home(region string) string { return "air/" + region }

func (s *ownersScript) run(t *testing.T, c *script.Command) {
	name := ""
	if len(c.CmdArgs) > 0 {
		name = c.CmdArgs[0].Key
	}
	switch c.Cmd {
	case "start": // a process begins
		s.start(s.instances[name])
	case "stop": // it is killed, or nothing reaches it any more
		s.instances[name].core = nil
		s.say("%s does not run", name)
	case "cut": // it runs, and nothing of the register reaches it, nor it the register
		s.instances[name].cut = true
		s.say("%s is cut off", name)
	case "log": // where the log of a region ends, and how much of it the other has applied
		o := s.instances[name]
		c.ScanArgs(t, "end", &o.ends)
		o.applied = o.ends
		c.MaybeScanArgs(t, "applied", &o.applied)
		s.instances[name+"+"].ends, s.instances[name+"+"].applied = o.ends, o.applied
	case "fence", "unfence": // of a region, by=<region>, times=<how often it is asked for at once>
		var by string
		times := 1
		c.ScanArgs(t, "by", &by)
		c.MaybeScanArgs(t, "times", &times)
		for range times {
			s.asked++
			s.give(s.instances[by], ownership.Ask{Ref: s.asked, Command: ownership.Command{Verb: ownership.Verb(c.Cmd), Region: name, Reason: "script"}})
		}
	case "wait":
		d, err := time.ParseDuration(name)
		if err != nil {
			c.Fatalf(t, "%v", err)
		}
		for end := s.now + d; s.now < end; {
			s.now += 100 * time.Millisecond
			for _, n := range s.names() {
				s.give(s.instances[n], ownership.Wake{})
			}
			s.serve()
		}
	case "view":
		s.view()
	default:
		c.Fatalf(t, "no such command")
	}
	s.serve()
}

// start begins a life of an instance: it reads the register from its start.
func (s *ownersScript) start(o *owner) {
	o.lives++
	o.core = ownership.NewCore(ownership.CoreConfig{
		Region: o.region, ID: o.id, Regions: s.topology, Instance: o.region + "-0", Life: fmt.Sprintf("%s.%d", o.name, o.lives),
		Home: []string{home(o.region)}, Lease: ownership.DefaultLease(), Mark: o.mark,
	})
	s.give(o, ownership.Opened{Created: 1, Last: uint64(len(s.register))})
	for _, m := range s.register {
		s.give(o, m)
	}
}

// serve delivers until nobody has anything to do.
func (s *ownersScript) serve() {
	for len(s.queue) > 0 {
		next := s.queue[0]
		s.queue = s.queue[1:]
		next()
	}
}

// give queues an event for an instance.
func (s *ownersScript) give(o *owner, ev ownership.Event) {
	s.queue = append(s.queue, func() {
		_, heard := ev.(ownership.Seen)
		if o.core == nil || o.cut && heard {
			return
		}
		for _, e := range append([]ownership.Effect(nil), o.core.Step(s.now, ev)...) {
			s.effect(o, e)
		}
		s.rights(o)
		if why := o.core.NameTaken(); why != "" {
			s.say("%s stops for good: %s", o.name, why)
			o.core = nil
		}
	})
}

// rights says when the right to write has changed.
func (s *ownersScript) rights(o *owner) {
	now := ""
	if g, err := o.core.Tokens().Grant(s.now, home(o.region)); err == nil {
		now = fmt.Sprintf("may write in epoch %d", g.Epoch)
	} else {
		now = "may not write"
	}
	if now != o.told {
		o.told = now
		s.say("%s %s", o.name, now)
	}
}

func (s *ownersScript) effect(o *owner, e ownership.Effect) {
	ends := func(n int64) []ownership.Extent {
		return []ownership.Extent{{Topic: "flights", Offsets: []int64{n}}}
	}
	switch e := e.(type) {
	case ownership.Write:
		s.write(o, e)
	case ownership.Broadcast:
		s.say("%s tells everybody of revision %d", o.name, e.Seq)
		for _, n := range s.names() {
			if n != o.name {
				s.give(s.instances[n], ownership.Seen{Subject: e.Subject, Seq: e.Seq, Data: e.Data, Source: ownership.Rumoured})
			}
		}
	case ownership.List:
		s.say("%s lists where its log ends: %d", o.name, o.ends)
		s.give(o, ownership.Listed{Unit: e.Unit, Rev: e.Rev, Ref: e.Ref, Ends: ends(o.ends), OK: true})
	case ownership.Settle:
		s.say("%s has answered all that it had accepted under the old epoch; its log ends at %d", o.name, o.ends)
		s.give(o, ownership.Settled{Unit: e.Unit, Epoch: e.Epoch, Ends: ends(o.ends), OK: true})
	case ownership.AskApplied:
		n := s.instances[e.Region].applied
		s.say("%s asks how much of %s's log any other region has applied: %d", o.name, e.Region, n)
		s.give(o, ownership.Applied{Unit: e.Unit, Ref: e.Ref, Ends: ends(n), OK: true})
	case ownership.Persist:
		o.mark = e.Mark
		s.give(o, ownership.Persisted{Version: e.Version})
	case ownership.Answer:
		s.say("%s: the command ends with exit code %d: %s", o.name, e.Result.Code, e.Result.Detail)
		for _, u := range e.Result.Units {
			s.say("%s:   %s, epoch %d, cut at %s", o.name, u.Unit, u.Epoch, u.Cut)
		}
	}
}

// write stores a message if its condition holds, and shows it to every watch.
func (s *ownersScript) write(o *owner, w ownership.Write) {
	if o.cut {
		s.give(o, ownership.Written{Op: w.Op, Outcome: ownership.Unknown})
		return
	}
	if w.Guard != "" && s.newest[w.Guard] != w.Expect {
		s.say("%s: refused, %s has changed: %s", o.name, w.Guard, what(w))
		s.give(o, ownership.Written{Op: w.Op, Outcome: ownership.Conflict})
		return
	}
	m := ownership.Seen{Subject: w.Subject, Seq: uint64(len(s.register) + 1), Data: w.Data}
	s.register = append(s.register, m)
	s.newest[w.Subject] = m.Seq
	if text := what(w); text != "" {
		s.say("register, revision %d, by %s: %s", m.Seq, o.name, text)
	}
	s.give(o, ownership.Written{Op: w.Op, Outcome: ownership.Stored, Seq: m.Seq})
	for _, n := range s.names() {
		s.give(s.instances[n], m)
	}
}

// what is a message of the register in words, "" for a renewal of a lease.
func what(w ownership.Write) string {
	var r struct {
		Region, Unit, State, Owner, Instance string
		Live                                 uint64 `json:"live_epoch"`
		Epoch                                event.Epoch
		Ends                                 []ownership.Extent
		Epochs                               []ownership.Tenure
		Gone                                 bool
	}
	if err := json.Unmarshal(w.Data, &r); err != nil {
		return err.Error()
	}
	switch {
	case strings.HasPrefix(w.Subject, "own.drained."):
		return fmt.Sprintf("instance %s has drained %s for epoch %d; the log ends at %s", r.Instance, r.Unit, r.Epoch, offsets(r.Ends))
	case strings.HasPrefix(w.Subject, "own.unit."):
		who := "nobody owns it"
		if r.Owner != "" {
			who = "owner " + r.Owner
		}
		return fmt.Sprintf("unit %s: %s, epoch %d, %s; intervals %s", r.Unit, r.State, r.Epoch, who, intervals(r.Epochs))
	case strings.HasPrefix(w.Subject, "own.region."):
		return fmt.Sprintf("region %s: %s, liveness epoch %d", r.Region, r.State, r.Live)
	}
	return ""
}

func offsets(all []ownership.Extent) string {
	if len(all) == 0 {
		return "0"
	}
	return strconv.FormatInt(all[0].Offsets[0], 10)
}

// intervals are the offsets that count: from start to cut, by epoch.
func intervals(all []ownership.Tenure) string {
	var texts []string
	for _, x := range all {
		text := fmt.Sprintf("%d: %s..", x.Epoch, offsets(x.Start))
		if x.Ended {
			text += offsets(x.Cut)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// view shows the newest record of every region and unit.
func (s *ownersScript) view() {
	for _, n := range []string{"us", "eu"} {
		for _, subject := range []string{ownership.RegionSubject(n), ownership.UnitSubject(home(n))} {
			if seq := s.newest[subject]; seq > 0 {
				m := s.register[seq-1]
				s.say("%s", what(ownership.Write{Subject: m.Subject, Data: m.Data}))
			}
		}
	}
}
