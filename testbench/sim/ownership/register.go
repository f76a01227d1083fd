package ownership

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// register is the stream that decides: linearizable, as the real one is as long
// as no disk is rolled back.
type register struct {
	s      *sim
	log    []message
	last   map[string]uint64 // newest sequence of a subject
	ids    map[string]uint64
	owners map[string]string // region by unit and epoch
	epochs map[string]event.Epoch
	stall  time.Duration // no write before: an election runs
}

type message struct {
	subject string
	data    []byte
}

func (r *register) init(s *sim) {
	*r = register{s: s, last: make(map[string]uint64), ids: make(map[string]uint64),
		owners: make(map[string]string), epochs: make(map[string]event.Epoch)}
	if s.chance(0.5) {
		s.after(s.between(10*time.Second, turmoil), func() { r.stall = s.now + s.between(4*time.Second, 24*time.Second) })
	}
}

// write is one attempt as the server executes it.
func (r *register) write(w router.Write) (router.Outcome, uint64) {
	if seq, ok := r.ids[w.ID]; ok {
		return router.Stored, seq
	}
	if w.Guard != "" && r.last[w.Guard] != w.Expect {
		return router.Conflict, 0
	}
	r.log = append(r.log, message{w.Subject, w.Data})
	seq := uint64(len(r.log))
	r.ids[w.ID], r.last[w.Subject] = seq, seq
	r.check(w, seq)
	for _, p := range r.s.procs {
		p.wakeWatch()
	}
	return router.Stored, seq
}

// check holds what is stored against the invariants of the register: epochs only
// rise, an epoch has one owner, intervals of one region do not overlap.
func (r *register) check(w router.Write, seq uint64) {
	var u router.UnitRecord
	if err := json.Unmarshal(w.Data, &u); err != nil || u.Unit == "" || u.State == "" {
		return
	}
	r.s.log("register %d: %s %s epoch %d owner %q by %s", seq, u.Unit, u.State, u.Epoch, u.Owner, u.By)
	if u.Epoch < r.epochs[u.Unit] {
		r.s.violate("I1", "the epoch of %s goes back from %d to %d", u.Unit, r.epochs[u.Unit], u.Epoch)
	}
	r.epochs[u.Unit] = u.Epoch
	if u.Owner != "" {
		key := fmt.Sprintf("%s %d", u.Unit, u.Epoch)
		if was := r.owners[key]; was != "" && was != u.Owner {
			r.s.violate("I2", "epoch %d of %s has owners %s and %s", u.Epoch, u.Unit, was, u.Owner)
		}
		r.owners[key] = u.Owner
	}
	var end int64
	for i, t := range u.Epochs {
		start, _ := router.Offset(t.Start, topic, 0, 0)
		cut, has := router.Offset(t.Cut, topic, 0, 0)
		if start < end {
			r.s.violate("I5", "epoch %d of %s begins at %d, below the cut %d before", t.Epoch, u.Unit, start, end)
		}
		if i > 0 && t.Epoch <= u.Epochs[i-1].Epoch {
			r.s.violate("I1", "epochs of %s do not rise: %d after %d", u.Unit, t.Epoch, u.Epochs[i-1].Epoch)
		}
		if i < len(u.Epochs)-1 && !t.Ended {
			r.s.violate("I5", "epoch %d of %s has a successor and no cut", t.Epoch, u.Unit)
		}
		if t.Ended && has {
			end = max(end, cut)
		}
	}
}
