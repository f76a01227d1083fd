package ownership

import (
	"fmt"
	"maps"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// proc is one instance: the product's state machine with a simulated adapter.
type proc struct {
	s      *sim
	region string
	name   string
	home   []string
	rate   float64
	offset time.Duration

	core   *router.Ownership
	tokens *router.Tokens
	life   int
	disk   router.Mark
	awake  time.Duration // paused until then
	off    time.Duration // cut off from the register until then
	deaf   time.Duration // the watch brings nothing until then
	fresh  time.Duration // when its last renewal was stored
	prey   bool          // is cut off at the moment at which its leases are made void
	seen   uint64        // the watch has sent that far
	watch  int           // generation of the watch
	moving bool          // a delivery is under way
	timer  uint64
}

// clock is the instance's own: it goes on while the instance is paused.
func (p *proc) clock() time.Duration {
	return p.offset + time.Duration(float64(p.s.now)*p.rate)
}

// real is how long the instance's clock needs for a time, in the world's.
func (p *proc) real(d time.Duration) time.Duration { return time.Duration(float64(d) / p.rate) }

// later runs something in the instance's present life, when it is not paused.
func (p *proc) later(d time.Duration, run func()) {
	life := p.life
	var try func()
	try = func() {
		switch {
		case p.life != life:
		case p.awake > p.s.now:
			p.s.after(p.awake-p.s.now, try)
		default:
			run()
		}
	}
	p.s.after(d, try)
}

func (p *proc) boot() {
	p.life++
	p.core = router.NewOwnership(router.OwnershipConfig{
		Region: p.region, ID: p.id(), Regions: p.s.topology, Instance: p.name,
		Life: fmt.Sprintf("%s/%d", p.name, p.life), Home: p.home, Lease: p.s.lease, Mark: p.disk,
	})
	p.tokens = p.core.Tokens()
	p.seen, p.watch, p.moving = 0, p.watch+1, false
	p.open()
}

func (p *proc) id() event.RegionID {
	id, _ := p.s.topology.ID(p.region)
	return id
}

func (p *proc) open() {
	p.later(p.s.between(time.Millisecond, 200*time.Millisecond), func() {
		p.step(router.Opened{Created: 1, Last: uint64(len(p.s.reg.log))})
		p.wakeWatch()
	})
}

// Faults.

func (p *proc) pause(d time.Duration) {
	p.s.counts["pauses"]++
	p.s.log("%s pauses for %v", p.name, d)
	p.awake = max(p.awake, p.s.now+d)
}

func (p *proc) cut(d time.Duration) {
	p.s.counts["cuts"]++
	p.s.log("%s is cut off for %v", p.name, d)
	p.off = p.s.now + d
}

func (p *proc) blind(d time.Duration) {
	p.s.counts["blind watches"]++
	p.deaf = p.s.now + d
}

func (p *proc) kill() {
	p.s.counts["kills"]++
	p.s.log("%s dies", p.name)
	p.life++
	p.core, p.tokens = nil, nil
	life := p.life
	p.s.after(p.s.between(100*time.Millisecond, 20*time.Second), func() {
		if p.life == life {
			p.boot()
		}
	})
}

func (p *proc) heal() {
	p.awake, p.off, p.deaf, p.prey = 0, 0, 0, false
	p.wakeWatch()
}

// step runs the machine and does what it asks for, perhaps with a pause between
// two effects.
func (p *proc) step(ev router.OwnershipEvent) {
	effects := append([]router.OwnershipEffect(nil), p.core.Step(p.clock(), ev)...)
	p.tokens = p.core.Tokens()
	if why := p.core.Regressed(); why != "" {
		p.s.violate("I11", "%s does not believe a register that has forgotten nothing: %s", p.name, why)
	}
	p.do(effects)
	p.timer++
	mine := p.timer
	p.later(p.real(p.core.Wait(p.clock(), time.Second)), func() {
		if p.timer == mine {
			p.step(router.Wake{})
		}
	})
}

func (p *proc) do(effects []router.OwnershipEffect) {
	for i, e := range effects {
		if !p.s.calmed && p.s.chance(0.004) {
			rest := effects[i:]
			p.pause(p.s.between(10*time.Millisecond, 40*time.Second))
			p.later(0, func() { p.do(rest) })
			return
		}
		p.effect(e)
	}
}

func (p *proc) effect(e router.OwnershipEffect) {
	s := p.s
	quick := s.quick
	switch e := e.(type) {
	case router.Write:
		p.send(e)
	case router.Read:
		p.read(e.Subject)
	case router.Broadcast:
		for _, q := range s.procs {
			if q == p || s.noCasts || s.chance(0.3) || p.off > s.now {
				continue
			}
			q.later(s.between(time.Millisecond, 3*time.Second), func() {
				if q.core != nil && q.off <= s.now && q.deaf <= s.now {
					q.step(router.Seen{Subject: e.Subject, Seq: e.Seq, Data: e.Data, Rumour: true})
				}
			})
		}
	case router.List:
		p.later(quick(), func() {
			ends := p.ends(e.Unit)
			p.later(quick(), func() { p.step(router.Listed{Unit: e.Unit, Rev: e.Rev, Ref: e.Ref, Ends: ends, OK: !s.chance(0.05)}) })
		})
	case router.Settle:
		p.later(quick(), func() {
			ends := p.ends(e.Unit)
			p.later(quick(), func() { p.step(router.Settled{Unit: e.Unit, Epoch: e.Epoch, Ends: ends, OK: !s.chance(0.05)}) })
		})
	case router.AskApplied:
		p.later(quick(), func() {
			l := s.logs[e.Unit]
			if n := int64(len(l.records)); n > l.applied {
				l.applied += s.rnd.Int64N(n - l.applied + 1)
			}
			p.step(router.Applied{Unit: e.Unit, Ref: e.Ref, Ends: extent(l.applied), OK: true})
		})
	case router.Persist:
		p.later(quick(), func() {
			p.disk = e.Mark
			p.disk.Epochs = maps.Clone(e.Mark.Epochs)
			p.step(router.Persisted{Version: e.Version})
		})
	case router.Rewatch:
		s.counts["rewatches"]++
		if s.calmed || s.chance(0.15) {
			p.deaf = 0 // another server was found that is not deaf
		}
		p.moving = false
		p.watch++
		p.seen = e.From
		p.wakeWatch()
	case router.Reopen:
		p.later(time.Second, p.open)
	case router.Answer:
		p.answered(e)
	}
}

// read answers with the newest message of a subject that some server has: any may
// answer, with what it has.
func (p *proc) read(subject string) {
	s := p.s
	p.later(s.quick(), func() {
		if p.off > s.now {
			return
		}
		upTo := len(s.reg.log)
		if s.chance(0.3) && upTo > 0 {
			upTo -= s.rnd.IntN(min(upTo, 20))
		}
		for seq := upTo; seq > 0; seq-- {
			if m := s.reg.log[seq-1]; m.subject == subject {
				p.step(router.Seen{Subject: m.subject, Seq: uint64(seq), Data: m.data, Rumour: true})
				return
			}
		}
	})
}

func extent(n int64) []router.Extent { return []router.Extent{{Topic: topic, Offsets: []int64{n}}} }

func (p *proc) ends(unit string) []router.Extent { return extent(int64(len(p.s.logs[unit].records))) }

// send is one attempt to write: the request or the answer may be lost, and after
// the time-out nobody waits.
func (p *proc) send(w router.Write) {
	s := p.s
	open, life := true, p.life
	finish := func(o router.Outcome, seq uint64) {
		if open && p.life == life {
			open = false
			p.step(router.Written{Op: w.Op, Outcome: o, Seq: seq})
		}
	}
	p.later(p.real(s.lease.Timeout), func() { finish(router.Unknown, 0) })
	often := 0.04
	if p.prey {
		often = 0.15
	}
	lost := func() bool { return p.off > s.now || !s.calmed && s.chance(often) }
	if lost() {
		return
	}
	var arrive func()
	arrive = func() {
		if s.reg.lurks(w) {
			s.after(time.Millisecond, arrive)
			return
		}
		if s.reg.stall > s.now {
			// What waits in an election may still be stored, long after its sender
			// has given it up.
			if s.chance(0.5) {
				s.after(s.reg.stall-s.now+s.between(0, time.Second), arrive)
			}
			return
		}
		if s.chance(0.03) {
			p.later(s.between(time.Millisecond, 20*time.Millisecond), func() { finish(router.Busy, 0) })
			return
		}
		o, seq := s.reg.write(w)
		if lost() {
			return
		}
		answer := s.quick()
		if !s.calmed && s.chance(0.1) {
			answer = s.between(100*time.Millisecond, 1900*time.Millisecond)
		}
		p.later(answer, func() { finish(o, seq) })
	}
	delay := s.quick()
	if !s.calmed && s.chance(0.01) {
		delay = s.between(time.Second, 30*time.Second) // in some buffer
	}
	s.after(delay, arrive)
}

// wakeWatch delivers what the watch has not brought yet, in order.
func (p *proc) wakeWatch() {
	s := p.s
	if p.core == nil || p.moving || p.seen >= uint64(len(s.reg.log)) {
		return
	}
	if p.deaf > s.now {
		return // silent, and nobody is told; Rewatch alone helps
	}
	p.moving = true
	gen := p.watch
	var deliver func()
	deliver = func() {
		if p.watch != gen {
			return
		}
		if p.off > s.now {
			p.later(p.off-s.now, deliver)
			return
		}
		p.moving = false
		if p.seen < uint64(len(s.reg.log)) {
			m := s.reg.log[p.seen]
			p.seen++
			p.step(router.Seen{Subject: m.subject, Seq: p.seen, Data: m.data})
		}
		p.wakeWatch()
	}
	p.later(s.between(100*time.Microsecond, 20*time.Millisecond), deliver)
}

// ask puts an operator's command to the instance.
func (p *proc) ask(cmd router.Command) {
	s := p.s
	if p.core == nil {
		return
	}
	s.refs++
	ref := s.refs
	s.counts[string(cmd.Verb)+"s"]++
	p.later(0, func() {
		s.log("%s is asked to %s %s%s", p.name, cmd.Verb, cmd.Region, cmd.Unit)
		s.asked[ref] = true
		p.step(router.Ask{Ref: ref, Command: cmd})
	})
}

func (p *proc) answered(a router.Answer) {
	s := p.s
	delete(s.asked, a.Ref)
	s.log("%s answers: exit %d, %s", p.name, a.Result.Exit, a.Result.Detail)
	s.counts[fmt.Sprintf("exit %d", a.Result.Exit)]++
	for _, u := range a.Result.Units {
		if a.Result.Exit == router.ExitDone || a.Result.Exit == router.ExitLoss {
			key := fmt.Sprintf("%s %d", u.Unit, u.Epoch)
			if s.kinds[key] == "" || u.Cut == router.CutEnd {
				s.kinds[key] = u.Cut
			}
		}
	}
}

// clientWrite is a producer's write through this instance: check, store, read
// back, check again, answer.
func (p *proc) clientWrite() {
	s := p.s
	if p.core == nil || p.awake > s.now {
		return
	}
	unit := p.home[s.rnd.IntN(len(p.home))]
	g, err := p.tokens.Grant(p.clock(), unit)
	if err != nil {
		return
	}
	s.held(p, unit, g.Epoch)
	life := p.life
	p.later(s.between(0, 30*time.Millisecond), func() {
		delay := s.between(time.Millisecond, 20*time.Millisecond)
		if s.chance(0.02) {
			delay = s.between(time.Second, 30*time.Second)
		}
		s.after(delay, func() {
			rec := &record{epoch: g.Epoch}
			s.logs[unit].records = append(s.logs[unit].records, rec)
			if p.life != life {
				return
			}
			p.later(s.between(time.Millisecond, 20*time.Millisecond), func() {
				if p.tokens.Holds(p.clock(), unit, g) {
					s.held(p, unit, g.Epoch)
					rec.acked, rec.at = true, s.now
					s.counts["writes answered"]++
				}
			})
		})
	})
}
