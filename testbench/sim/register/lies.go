package register

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
)

// Lie tells some instances of a record that the register never had: of a region or a
// unit, with a sequence and an epoch that are a little or enormously higher than the
// real ones. It is what anybody can say who reaches the servers.
func (r *Stream) Lie() {
	if r.Calm() {
		return
	}
	subject, data := r.forge()
	seq := uint64(len(r.log)) + 1 + uint64(r.Rand().IntN(5))
	if chance(r, 0.5) {
		seq += 1 << (20 + r.Rand().IntN(42))
	}
	r.Count("lies")
	r.Logf("somebody says that message %d is %s %s", seq, subject, data)
	for _, p := range r.Instances {
		if chance(r, 0.3) || p.off > r.Now() {
			continue
		}
		p.Later(between(r, time.Millisecond, 100*time.Millisecond), func() {
			if p.core != nil {
				p.hear(ownership.Seen{Source: ownership.Rumoured, Subject: subject, Seq: seq, Data: data})
			}
		})
	}
}

// forge makes a record that is none.
func (r *Stream) forge() (subject string, data []byte) {
	more := uint64(1 + r.Rand().IntN(3))
	if chance(r, 0.5) {
		more = 1 << (20 + r.Rand().IntN(30))
	}
	p := r.Instances[r.Rand().IntN(len(r.Instances))]
	if units := slices.Sorted(maps.Keys(r.units)); len(units) > 0 && chance(r, 0.5) {
		u := r.units[units[r.Rand().IntN(len(units))]]
		u.Epoch += event.Epoch(16 * more)
		u.Owner, u.State = "", ownership.UnitFenced
		if chance(r, 0.3) {
			u.Owner, u.State = p.Region, ownership.UnitActive
		}
		return ownership.UnitSubject(u.Unit), encode(u)
	}
	x, _ := r.Region(p.Region)
	x.Version, x.Region, x.ID, x.State = 1, p.Region, p.id(), ownership.RegionUp
	x.Live += more
	if chance(r, 0.5) {
		x.State, x.By = ownership.RegionFenced, "nobody"
	}
	return ownership.RegionSubject(p.Region), encode(x)
}

func encode(record any) []byte {
	data, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("register: encode a record: %v", err)) // plain structs
	}
	return data
}
