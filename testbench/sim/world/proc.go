package world

import (
	"time"

	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/kafka"
	"github.com/geogate/geogate/testbench/sim/register"
)

// proc is one gateway process. What it has asked for goes on after it dies:
// requests in flight may still land; only their answers reach nobody.
type proc struct {
	w      *World
	region *region
	name   string
	life   int // counts starts; work of an earlier life does nothing
	alive  bool
	skew   time.Duration // of its wall clock
	store  *store        // its data directory: outlives the process

	seats  map[kafka.TP]*seatRun
	links  map[*region]*linkRun
	orders map[*region]int // shards of the links that it was told to run, 0 none
	ctl    *follower

	inst  *register.Instance // nil: there is no register
	guard *residency.Guard   // nil: there is no policy
	// intervals makes tables of what the process knows of the register.
	intervals *ownership.Intervals
	told      map[kafka.TP]uint64 // revision of the table that its seats and links were told of
	// tablesFrom is when its seats hear of tables again, by the regime.
	tablesFrom time.Duration
}

// wall is the process's clock.
func (p *proc) wall() time.Time { return epoch0.Add(p.w.Now() + p.skew) }

// after runs do later unless the process has died by then, and not while it is
// paused.
func (p *proc) after(d time.Duration, do func()) {
	life := p.life
	var try func()
	try = func() {
		switch {
		case !p.alive || p.life != life:
		case p.inst != nil && p.inst.Paused():
			p.w.After(p.inst.Awake()-p.w.Now(), try)
		default:
			do()
		}
	}
	p.w.After(d, try)
}

// soon runs do now, or when the process is no longer paused.
func (p *proc) soon(do func()) {
	if p.inst != nil && p.inst.Paused() {
		p.after(0, do)
		return
	}
	do()
}

func (p *proc) logf(format string, args ...any) {
	if p.w.Tracing() {
		p.w.Logf(p.name+": "+format, args...)
	}
}

// conn is a connection to one cluster: requests arrive in the order in which
// they were sent. A lost answer breaks it; the next call dials again, and what
// the old one carried may arrive later than what the new one carries.
type conn struct {
	p      *proc
	to     *region
	last   time.Duration // arrival of the newest request
	broken bool
	late   time.Duration // the next request comes so late, and its answer nowhere; 0: as it may be
}

func (p *proc) dial(to *region) *conn { return &conn{p: p, to: to} }

// call sends a request. do runs where the cluster handles it and returns what
// the process does with the answer; lost runs when the process gives up waiting,
// whether or not the request has had its effect or will have it later. Exactly
// one of the two runs, unless the process dies first.
func (c *conn) call(do func(*kafka.Cluster) (reply func()), lost func()) {
	p, w := c.p, c.p.w
	if c.broken {
		*c = conn{p: c.p, to: c.to}
	}
	cut := w.isCut(p.region, c.to)
	arrive := max(c.last, w.Now()+w.latency(p.region, c.to))
	fate, late := w.fate(cut), c.late
	if c.late = 0; late > 0 {
		fate = lateRequest
	}
	timeout := w.Now() + w.Between(300*time.Millisecond, 2*time.Second)
	gone := func() {
		c.broken = true
		p.after(timeout-w.Now(), lost)
	}
	switch fate {
	case dropRequest:
		gone()
		return
	case lateRequest:
		if late == 0 {
			late = w.Between(time.Second, 12*time.Second)
		}
		arrive = max(c.last, w.Now()+late)
		w.After(arrive-w.Now(), func() { do(c.to.kafka) })
		gone()
		return
	}
	c.last = arrive
	life := p.life
	w.After(arrive-w.Now(), func() {
		reply := do(c.to.kafka)
		if fate == dropAnswer || w.isCut(p.region, c.to) {
			if p.alive && p.life == life {
				timeout = max(timeout, w.Now())
				gone()
			}
			return
		}
		p.after(w.latency(p.region, c.to), reply)
	})
}

// kill ends the process as kill -9 does.
func (p *proc) kill() {
	if !p.alive {
		return
	}
	p.alive = false
	p.life++
	p.logf("killed")
	for _, s := range p.seats {
		s.closed = true
	}
	for _, l := range p.links {
		l.closed = true
		for _, s := range l.shards {
			s.closed = true // its readers wait at the cluster, which outlives the process
		}
	}
	p.seats, p.links, p.ctl = nil, nil, nil
	if p.inst != nil {
		p.inst.Die()
	}
}

type fate uint8

const (
	delivered fate = iota
	dropRequest
	dropAnswer
	lateRequest
)

// fate draws what becomes of a request.
func (w *World) fate(cut bool) fate {
	if cut {
		return dropRequest
	}
	if w.calm || !w.Chance(w.cfg.faults) {
		return delivered
	}
	return fate(1 + w.Rand().IntN(3))
}
