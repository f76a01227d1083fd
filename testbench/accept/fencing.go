//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/testbench/client"
)

const (
	// takenHold is how soon a fence must have stopped a region that can hear of it.
	takenHold = time.Second
	// knowWait bounds what follows a command: refusals, a first accepted write, a
	// list that is complete. It is far above what is usual, for loaded machines;
	// a claim takes the lease wait, 18.4 s, in addition.
	knowWait = 60 * time.Second
	// lostWrites are acknowledged by a region that is cut off before it is stopped,
	// so that there certainly are orphans.
	lostWrites = 40
	// stillThrough is how long the data line of an isolated region goes on: what is
	// acknowledged meanwhile, after the fence was asked for, counts, and what is
	// acknowledged later does not.
	stillThrough = 8 * time.Second
)

// fencing is the second part: fences under load, and a border that nothing crosses.
type fencing struct {
	notebook
	w     *threeSites
	diary diary
	leak  *leakTest

	lost     map[string]*lostWrite // acknowledged orphans, by key
	settled  map[string]*attempt   // by key: the answer to the retry of an unknown outcome
	measured []string
}

// lostWrite is an acknowledged write that a fence made an orphan, and the answer to
// its retry.
type lostWrite struct {
	*attempt
	asked string // region of the retry; empty: not yet
	again client.Answer
}

// scenario is one way in which a region is fenced.
type scenario struct {
	name string
	exit int
	// before brings the region into its state, under load.
	before func(ctx context.Context) error
	// during runs beside the fence.
	during func(ctx context.Context, f *fenceRun) error
	// after brings the region back, once the fence has answered.
	after func(ctx context.Context, f *fenceRun) error
}

// fenceRun is one run of the fence command, on the clock of this process.
type fenceRun struct {
	began, answered time.Time
	exit            int
	fenced, cut     time.Time // when the register showed all units fenced, and cut
	units           []fencedUnit
	heard           time.Time // when the region could hear of it again
	freed           time.Time // when unfence was asked for
}

type fencedUnit struct {
	Unit  string `json:"unit"`
	Epoch uint64 `json:"epoch"`
	Cut   string `json:"cut"`
}

// scenarios are the three of them: eu answers, eu is stopped, eu does not hear.
func (s *fencing) scenarios() []scenario {
	eu := s.w.eu
	return []scenario{
		{name: "alive", exit: 0},
		{
			name: "stopped", exit: 10,
			before: func(ctx context.Context) error {
				if err := s.cutOff(ctx); err != nil {
					return err
				}
				return eu.proc.Signal(syscall.SIGSTOP)
			},
			after: func(ctx context.Context, f *fenceRun) error {
				f.heard = time.Now()
				if err := eu.proc.Signal(syscall.SIGCONT); err != nil {
					return err
				}
				return s.refused(ctx, f.heard, "NOT_OWNER")
			},
		},
		{
			name: "isolated", exit: 10,
			before: func(context.Context) error {
				s.w.isolate(eu)
				return nil
			},
			during: func(ctx context.Context, f *fenceRun) error {
				if sleep.For(ctx, stillThrough) != nil {
					return ctx.Err()
				}
				return s.cutOff(ctx)
			},
			after: func(ctx context.Context, f *fenceRun) error {
				if err := s.refused(ctx, f.answered, "OWNERSHIP_UNPROVEN"); err != nil {
					return err
				}
				f.heard = time.Now()
				if err := s.w.rejoin(eu); err != nil {
					return err
				}
				return s.refused(ctx, f.heard, "NOT_OWNER")
			},
		},
	}
}

// cutOff cuts eu's line to us's Kafka and waits until eu has acknowledged writes
// that cannot have crossed.
func (s *fencing) cutOff(ctx context.Context) error {
	s.w.us.proxy.Cut()
	cut := time.Now()
	if err := s.leak.plant(ctx, "while the line was cut", true); err != nil {
		return err
	}
	return s.await(ctx, "eu acknowledges writes that cannot cross", func() bool {
		n := 0
		for _, a := range s.diary.since("eu", cut) {
			if a.acked() && a.sent.After(cut) {
				n++
			}
		}
		return n >= lostWrites
	})
}

// await polls until something is so, or says that it is not.
func (s *fencing) await(ctx context.Context, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, knowWait)
	defer cancel()
	if !poll(ctx, 20*time.Millisecond, ok) {
		return fmt.Errorf("wait until %s: %w", what, ctx.Err())
	}
	return nil
}

// crossed waits until us has applied what was planted and may leave.
func (s *fencing) crossed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, knowWait)
	defer cancel()
	for p, a := range s.leak.leaving {
		if err := s.applied(ctx, s.w.us, p, a); err != nil {
			return err
		}
	}
	return nil
}

// refused waits until every unit of eu has refused a request that was sent after a
// time with a code.
func (s *fencing) refused(ctx context.Context, from time.Time, code string) error {
	return s.await(ctx, "eu refuses with "+code, func() bool {
		units := make(map[string]bool)
		for _, a := range s.diary.since("eu", from) {
			if p := a.problem(); p != nil && p.Code == code && a.sent.After(from) {
				units[a.unit] = true
			}
		}
		return len(units) == len(flowsOf(s.w.eu))
	})
}

// accepted waits until every unit of a region has acknowledged n requests that were
// sent after a time.
func (s *fencing) accepted(ctx context.Context, r *region, from time.Time, n int) error {
	return s.await(ctx, r.name+" accepts writes to all of its units", func() bool {
		units := make(map[string]int)
		for _, a := range s.diary.since(r.name, from) {
			if a.acked() && a.sent.After(from) {
				units[a.unit]++
			}
		}
		full := 0
		for _, acks := range units {
			if acks >= n {
				full++
			}
		}
		return full == len(flowsOf(r))
	})
}

// round fences eu in one way, looks at what came of it, and lets eu go on.
func (s *fencing) round(ctx context.Context, c scenario) error {
	if err := s.leak.plant(ctx, "some time before the fence, "+c.name, false); err != nil {
		return err
	}
	if err := s.crossed(ctx); err != nil {
		return err
	}
	s.rep.say("fence eu, %s: load on %d units of eu and %d of us", c.name, len(flowsOf(s.w.eu)), len(flowsOf(s.w.us)))
	w, started := s.w, time.Now()
	us, eu := s.startLoad(ctx, w.us, c.name), s.startLoad(ctx, w.eu, c.name)
	defer us.end()
	defer eu.end()
	for _, r := range w.regions() {
		if err := s.accepted(ctx, r, started, 10); err != nil {
			return err
		}
	}
	if c.before != nil {
		if err := c.before(ctx); err != nil {
			return err
		}
	}
	f, err := s.fence(ctx, c)
	if err != nil {
		return err
	}
	if c.after != nil {
		err = c.after(ctx, f)
	} else {
		f.heard = f.began
		err = s.refused(ctx, f.answered, "NOT_OWNER")
	}
	eu.end()
	s.fenceIsAnswered(c, f)
	s.nothingAfter(c, f)
	if err != nil {
		return err
	}
	s.refusalsSayWhy(c, f)
	if err := s.orphansAreListed(ctx, c); err != nil {
		return err
	}
	// Only now: eu lists what lies past its cuts, so its link knows them, too. One
	// that does not carries what it finds.
	if err := w.us.proxy.Heal(); err != nil {
		return err
	}
	if err := s.retryElsewhere(ctx); err != nil {
		return err
	}
	if err := s.unfence(ctx, c, f); err != nil {
		return err
	}
	us.end()
	s.usWentOn(c, started)
	return s.retryHere(ctx, c)
}

// fence runs the command, asked of us, and whatever goes on beside it, and watches
// the register from us.
func (s *fencing) fence(ctx context.Context, c scenario) (*fenceRun, error) {
	f := &fenceRun{began: time.Now()}
	g, gctx := errgroup.WithContext(ctx)
	watch, stop := context.WithCancel(gctx)
	defer stop()
	g.Go(func() error {
		s.watchFence(watch, f)
		// The command may have answered before the next look.
		last, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		s.watchFence(last, f)
		return nil
	})
	if c.during != nil {
		g.Go(func() error { return c.during(gctx, f) })
	}
	var out []byte
	g.Go(func() (err error) {
		out, f.exit, err = s.w.order(gctx, s.w.us, "fence", "--region", "eu", "--reason", s.leak.reason.text, "-o", "json")
		f.answered = time.Now()
		stop()
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var result struct {
		Units []fencedUnit `json:"units"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return nil, fmt.Errorf("decode answer of fence %.200q: %w", out, err)
	}
	f.units = result.Units
	return f, nil
}

// watchFence notes when us saw all units of eu fenced, and when it saw them cut.
func (s *fencing) watchFence(ctx context.Context, f *fenceRun) {
	poll(ctx, 25*time.Millisecond, func() bool {
		if !f.cut.IsZero() {
			return true
		}
		units, err := s.w.units(ctx, s.w.us)
		if err != nil {
			return false
		}
		fenced, cut := 0, 0
		for _, flow := range flowsOf(s.w.eu) {
			u := units[flow.unit]
			if u.State == "FENCED" {
				fenced++
				if n := len(u.Epochs); n > 0 && u.Epochs[n-1].Ended {
					cut++
				}
			}
		}
		all := len(flowsOf(s.w.eu))
		now := time.Now()
		if fenced == all && f.fenced.IsZero() {
			f.fenced = now
		}
		if cut == all {
			f.cut = now
		}
		return cut == all
	})
}

// fenceIsAnswered: the exit code says what became of the writes, and every unit has
// its cut.
func (s *fencing) fenceIsAnswered(c scenario, f *fenceRun) {
	want := map[int]string{0: "end", 10: "applied"}[c.exit]
	if f.exit != c.exit {
		s.note("fence of eu, %s, exits %d, want %d", c.name, f.exit, c.exit)
	}
	have := make(map[string]fencedUnit)
	for _, u := range f.units {
		have[u.Unit] = u
	}
	for _, flow := range flowsOf(s.w.eu) {
		if u := have[flow.unit]; u.Cut != want || u.Epoch == 0 {
			s.note("fence of eu, %s: unit %s is cut at %q in epoch %d, want %q", c.name, flow.unit, u.Cut, u.Epoch, want)
		}
	}
	s.report(fmt.Sprintf("fence of a region that is %s answers with exit code %d", c.name, c.exit), "%d units, %s after the command", len(f.units), f.answered.Sub(f.began).Round(10*time.Millisecond))
}

// nothingAfter: what was sent after the fence took hold was not acknowledged.
func (s *fencing) nothingAfter(c scenario, f *fenceRun) {
	hold, when := f.answered, "the answer"
	if c.exit == 0 && f.began.Add(takenHold).Before(hold) {
		hold, when = f.began.Add(takenHold), "the first second"
	}
	asked, last := 0, f.began
	for _, a := range s.diary.since("eu", f.began) {
		if a.sent.After(hold) {
			asked++
		}
		if !a.acked() {
			continue
		}
		if a.got.After(last) {
			last = a.got
		}
		if a.sent.After(hold) {
			s.note("%s of %s, sent %s after the command, was acknowledged as %s in epoch %d", a.Idem, a.unit, a.sent.Sub(f.began), a.answer.Dot, a.answer.Epoch)
		}
	}
	if asked == 0 {
		s.note("nothing was asked of eu after the fence took hold")
	}
	s.report(fmt.Sprintf("no write is acknowledged that was sent after %s of a fence, region %s", when, c.name), "%d requests", asked)
	s.measure("fence, eu %s: command → last acknowledged write %s, → units fenced in the register %s, → cuts in it %s, → answer %s",
		c.name, since(f.began, last), since(f.began, f.fenced), since(f.began, f.cut), since(f.began, f.answered))
}

func (s *fencing) measure(format string, args ...any) {
	s.measured = append(s.measured, fmt.Sprintf(format, args...))
	s.rep.say("measured: %s", s.measured[len(s.measured)-1])
}

func since(from, to time.Time) string {
	if to.IsZero() {
		return "(not seen)"
	}
	return to.Sub(from).Round(time.Millisecond).String()
}

// refusalsSayWhy: a fenced region names unit, epoch and state, and nothing that it
// refuses may be asked for again in vain; one that cannot know of the fence says
// that it cannot prove that it owns the unit.
func (s *fencing) refusalsSayWhy(c scenario, f *fenceRun) {
	n, unproven := 0, 0
	for _, a := range s.diary.since("eu", f.answered) {
		p := a.problem()
		if p == nil || !a.sent.After(f.answered) {
			continue
		}
		n++
		switch {
		case p.Code == "OWNERSHIP_UNPROVEN" && p.Status == 503 && p.Retriable && c.name != "alive":
			unproven++
		case p.Code != "NOT_OWNER" || p.Status != 409 || p.Retriable:
			s.note("%s is refused with %v", a.Idem, p)
		case p.Unit != a.unit || p.Owner != nil || p.State != "FENCED" || p.Epoch == 0:
			s.note("%s is refused for unit %q of owner %v in epoch %d, state %q; it belongs to %s", a.Idem, p.Unit, p.Owner, p.Epoch, p.State, a.unit)
		}
	}
	if n == 0 {
		s.note("eu refused nothing after the fence")
	}
	s.report("a fenced region's refusals say who owns the unit, and in which epoch and state", "%d refusals, %d of them before it could know", n, unproven)
}

// usWentOn: what us owns was never refused while eu was fenced.
func (s *fencing) usWentOn(c scenario, started time.Time) {
	all := s.diary.since("us", started)
	for _, a := range all {
		if !a.acked() {
			s.note("%s of %s: %v", a.Idem, a.unit, a.err)
		}
	}
	s.report(fmt.Sprintf("us's own units take every write while eu, %s, is fenced", c.name), "%d writes", len(all))
}

// unfence lets eu claim its units again and waits until it writes all of them.
func (s *fencing) unfence(ctx context.Context, c scenario, f *fenceRun) error {
	f.freed = time.Now()
	_, code, err := s.w.order(ctx, s.w.us, "unfence", "--region", "eu")
	if err != nil {
		return err
	}
	if code != 0 {
		s.note("unfence exits %d", code)
	}
	eu := s.startLoad(ctx, s.w.eu, c.name+"-after")
	defer eu.end()
	if err := s.accepted(ctx, s.w.eu, f.freed, 10); err != nil {
		return err
	}
	eu.end()
	first, epochs := make(map[string]time.Time), make(map[string]uint64)
	for _, u := range f.units {
		epochs[u.Unit] = u.Epoch
	}
	for _, a := range s.diary.since("eu", f.freed) {
		p := a.problem()
		switch {
		case a.acked():
			if first[a.unit].IsZero() {
				first[a.unit] = a.got
			}
			if a.answer.Epoch <= epochs[a.unit] || a.answer.Epoch%16 != uint64(s.w.eu.id) || a.answer.Unit != a.unit {
				s.note("%s of %s is accepted in epoch %d of %q; the fence was epoch %d", a.Idem, a.unit, a.answer.Epoch, a.answer.Unit, epochs[a.unit])
			}
		case p == nil || p.Code != "NOT_OWNER" && p.Code != "OWNERSHIP_UNPROVEN" && p.Code != "NOT_READY": // a term begins
			s.note("%s of %s, after unfence: %v", a.Idem, a.unit, a.err)
		}
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(first)) {
		all = append(all, fmt.Sprintf("%s %s", name, since(f.freed, first[name])))
	}
	s.report(fmt.Sprintf("an unfenced region, %s before, writes its units again under a new epoch", c.name), "%d units", len(first))
	s.measure("unfence, eu %s before: command → first accepted write %s", c.name, strings.Join(all, ", "))
	return nil
}

// askAgain is what a careful client may do with a write whose outcome it does not
// know: ask again, until it is told.
func (s *fencing) askAgain(ctx context.Context, a *attempt, r *region) error {
	ctx, cancel := context.WithTimeout(ctx, retryWait)
	defer cancel()
	again, err := r.store(ctx, a.Write)
	if err != nil {
		return fmt.Errorf("ask again for %s: %w", a.Idem, errors.Join(err, ctx.Err()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled[a.Idem] = &attempt{item: a.item, region: r.name, unit: a.unit, answer: again}
	return nil
}
