package replicate

import "github.com/geogate/geogate/internal/event"

// SetBefore has f called before each effect of a shard (-1: of the agreement) is
// carried out; an error ends the work on the spot, as a kill would.
func (l *Link) SetBefore(f func(shard int, effect any) error) { l.before = f }

// Covered is the committed source position of every stream.
func (l *Link) Covered() map[Part]int64 {
	views, _ := l.views()
	out := map[Part]int64{}
	for _, v := range views {
		out[v.part] = v.covered
	}
	return out
}

// Resets is how often shards have been restarted.
func (s Status) Resets() int64 { return s.resets }

// Commits is how many transactions were committed.
func (s Status) Commits() int64 { return s.commits }

// Rounds is how often topics have been looked for.
func (l *Link) Rounds() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.discoveries
}

// Origin is the region whose intervals Owned gives.
const Origin = origin

// Owned is what a register of a revision says that has given the region these
// intervals: from, until, from, ...; the last one runs if it has no until.
func Owned(revision uint64, bounds ...int64) *event.ValidityTable {
	var spans []span
	for i := 0; i < len(bounds); i += 2 {
		s := span{bounds[i], event.NoCut}
		if i+1 < len(bounds) {
			s.until = bounds[i+1]
		}
		spans = append(spans, s)
	}
	return owned(revision, spans...)
}
