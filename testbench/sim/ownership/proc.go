package ownership

import (
	"time"

	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/register"
)

// proc is one instance with its writers, and its place at the logs.
type proc struct {
	*register.Instance
	sim *sim
}

// died has the process started again, on the disk that it had.
func (p *proc) died() {
	p.sim.After(p.sim.Between(100*time.Millisecond, 20*time.Second), func() {
		if !p.Alive() {
			p.Boot()
		}
	})
}

// exited has the process started again, also one whose name another one has, as by a
// supervisor that knows no better; of those only one is left in the calm.
func (p *proc) exited(nameTaken bool) {
	p.sim.After(p.sim.Between(time.Second, 40*time.Second), func() {
		if !p.Alive() && !(nameTaken && p.sim.calmed) {
			p.Boot()
		}
	})
}

func extent(n int64) []ownership.Extent {
	return []ownership.Extent{{Topic: topic, Offsets: []int64{n}}}
}

// Ends implements register.Logs.
func (p *proc) Ends(unit string, done func([]ownership.Extent, bool)) {
	s := p.sim
	p.Later(s.Quick(), func() {
		ends := extent(int64(len(s.logs[unit].records)))
		p.Later(s.Quick(), func() { done(ends, !s.Chance(0.05)) })
	})
}

// Applied implements register.Logs.
func (p *proc) Applied(unit, _ string, done func([]ownership.Extent, bool)) {
	s := p.sim
	p.Later(s.Quick(), func() {
		l := s.logs[unit]
		if n := int64(len(l.records)); n > l.applied {
			l.applied += s.Rand().Int64N(n - l.applied + 1)
		}
		done(extent(l.applied), true)
	})
}

// Judged implements register.Logs: the region has judged its log up to some cut that it knows.
func (p *proc) Judged(unit string, done func([]ownership.JudgedLog)) {
	s := p.sim
	p.Later(s.Quick(), func() {
		u, _ := s.reg.Unit(unit)
		out := ownership.JudgedLog{Topic: topic}
		for i := range u.Epochs {
			if cut, _ := ownership.Offset(u.Epochs[i].Cut, topic, 0, 0); u.Epochs[i].Ended && s.Chance(0.95) {
				out.To.Next = max(out.To.Next, min(cut, int64(len(s.logs[unit].records))))
			}
		}
		for offset, rec := range s.logs[unit].records[:out.To.Next] {
			if !counts(&u, int64(offset), rec.epoch) {
				out.From.Next = int64(offset) + 1
			}
		}
		p.Later(s.Quick(), func() { done([]ownership.JudgedLog{out}) })
	})
}

// CaughtUp implements register.Logs: a region that was returned needs a while.
func (p *proc) CaughtUp(done func(string)) {
	s := p.sim
	p.Later(s.Between(time.Millisecond, time.Second), func() {
		if s.Chance(0.7) {
			done("some of it")
			return
		}
		s.reg.CaughtUp(p.Region)
		done("")
	})
}

// clientWrite is a producer's write through this instance: check, store, read
// back, check again, answer.
func (p *proc) clientWrite() {
	s := p.sim
	if !p.Alive() || p.Paused() {
		return
	}
	unit := p.Home[s.Rand().IntN(len(p.Home))]
	g, err := p.Grant(unit)
	if err != nil {
		return
	}
	s.held(p, unit, g.Epoch)
	accepted := p.Life()
	p.Later(s.Between(0, 30*time.Millisecond), func() {
		delay := s.Between(time.Millisecond, 20*time.Millisecond)
		if s.Chance(s.lateWrites) {
			delay = s.Between(time.Second, 30*time.Second)
		}
		s.After(delay, func() {
			rec := &record{epoch: g.Epoch}
			s.logs[unit].records = append(s.logs[unit].records, rec)
			if p.Life() != accepted {
				return
			}
			p.Later(s.Between(time.Millisecond, 20*time.Millisecond), func() {
				if p.Holds(unit, g) {
					s.held(p, unit, g.Epoch)
					s.notFenced(p, unit)
					rec.acked = true
					s.counts["writes answered"]++
				}
			})
		})
	})
}
