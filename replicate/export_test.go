package replicate

import (
	"time"

	"github.com/geogate/geogate/internal/event"
)

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

// SoonRounds is how often topics are looked for, the first time included, before the
// link waits for Config.DiscoverEvery if nothing changes.
const SoonRounds = 4

// Pace gives the pauses between looks for topics.
type Pace struct{ pace }

// NewPace makes one whose longest pause is most.
func NewPace(most time.Duration) *Pace { return &Pace{pace{most: most}} }

// Next takes the topics that a look has found.
func (p *Pace) Next(topics ...string) time.Duration {
	var found []Stream
	for _, t := range topics {
		found = append(found, Stream{Part: Part{Topic: t}})
	}
	return p.next(found)
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

// TransactionPause is transactionPause.
func TransactionPause(since, took time.Duration) time.Duration { return transactionPause(since, took) }

// LagPause is lagPause.
func LagPause(partitions int) time.Duration { return lagPause(partitions) }

// FetchPause is fetchPause.
func FetchPause(since time.Duration, bytes int) time.Duration { return fetchPause(since, bytes) }

// Limits of the pauses.
const (
	TransactionIntervalFactor = transactionIntervalFactor
	TransactionIntervalMost   = transactionIntervalMost
	FetchEvery                = fetchEvery
	SmallFetch                = smallFetch
)
