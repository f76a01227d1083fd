package register

import (
	"encoding/json"
	"time"

	"github.com/geogate/geogate/router/ownership"
)

// send is one attempt to write: the request or the answer may be lost, and after
// the time-out nobody waits.
func (p *Instance) send(w ownership.Write) {
	s := p.s
	open, life := true, p.life
	if _, again := p.sent[w.ID]; !again {
		p.sent[w.ID] = sending{p.Clock(), p.life}
	}
	finish := func(o ownership.Outcome, seq uint64) {
		if open && p.life == life {
			open = false
			p.answered(&w, o, seq)
		}
	}
	p.Later(p.real(s.Lease.Timeout), func() { finish(ownership.Unknown, 0) })
	often := 0.04
	if p.targeted {
		often = 0.15
	}
	lost := func() bool { return p.off > s.Now() || !s.Calm() && chance(s, often) }
	if p.await != "" && p.await != w.ID || p.await == "" && lost() {
		return
	}
	var arrive func()
	arrive = func() {
		if s.heldBack(&w) {
			s.After(time.Millisecond, arrive)
			return
		}
		if _, unit := unitRecord(w.Data); unit && p.unitWritesFrom > s.Now() {
			s.After(p.unitWritesFrom-s.Now(), arrive)
			return
		}
		if s.overtaken(p, &w) {
			s.After(time.Millisecond, arrive)
			return
		}
		if s.stall > s.Now() {
			// What waits in an election may still be stored, long after its sender
			// has given it up.
			if chance(s, 0.5) {
				s.After(s.stall-s.Now()+between(s, 0, time.Second), arrive)
			}
			return
		}
		if chance(s, 0.03) {
			p.Later(between(s, time.Millisecond, 20*time.Millisecond), func() { finish(ownership.Busy, 0) })
			return
		}
		_, repeated := s.ids[w.ID]
		o, seq := s.write(p, w)
		if p.await == w.ID && !repeated || p.await != w.ID && lost() {
			return // stored, and not answered
		}
		answer := s.Quick()
		if !s.Calm() && p.await == "" && chance(s, 0.1) {
			answer = between(s, s.Lease.Timeout/20, s.Lease.Timeout*19/20)
		}
		p.Later(answer, func() { finish(o, seq) })
	}
	delay := s.Quick()
	if !s.Calm() && p.await == "" && chance(s, 0.01) {
		delay = between(s, s.Lease.Timeout/2, s.Lease.Duration*3/2) // in some buffer
	}
	s.After(delay, arrive)
}

// answered gives the machine what became of an attempt.
func (p *Instance) answered(w *ownership.Write, o ownership.Outcome, seq uint64) {
	if o == ownership.Stored {
		var r ownership.RegionRecord
		if u, ok := unitRecord(w.Data); ok {
			p.knows[u.Unit] = max(p.knows[u.Unit], u.Epoch)
		} else if w.Guard == w.Subject && json.Unmarshal(w.Data, &r) == nil && r.Region != "" {
			p.acks = append(p.acks, ack{r.Region, seq, p.Clock(), p.life})
		}
	}
	last := p.await == w.ID && o == ownership.Stored
	until := p.tokens.Until
	p.step(ownership.Written{Op: w.Op, Outcome: o, Seq: seq})
	if o == ownership.Stored && p.live(w.Subject) && p.Alive() && p.tokens.Live == w.Expect && p.tokens.Until != until {
		p.expectLoop(seq) // it was not abandoned before
	}
	if last {
		p.s.Logf("%s hears of the retry of %s, and of nothing more", p.Name, w.ID)
		p.await = ""
		if !p.s.Calm() {
			p.Cut(p.s.Lease.Duration * 3 / 2)
		}
	}
}

// expectLoop (I13): a watch that does not bring an instance's own renewal back is
// found silent within three times the renewals' interval: one until the renewal,
// two from there.
func (p *Instance) expectLoop(seq uint64) {
	s, at, life := p.s, p.s.Now(), p.life
	s.After(p.real(2*s.Lease.Renew+s.Lease.Renew/2), func() {
		quiet := p.disturb < at && p.awake < at && p.life == life
		// One that was restarted just before still brings what had come meanwhile.
		if quiet && p.seen < seq && p.rewatch < at-s.Lease.Renew && !s.forgot {
			s.Violate("I13", "the watch of %s has not brought message %d in %v, and nobody has noticed", p.Name, seq, s.Now()-at)
		}
	})
}
