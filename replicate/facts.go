package replicate

import (
	"bytes"
	"sync"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router"
)

// Facts says which records of the source's control topic a link carries to the
// target. A record's form proves nothing: whoever may write to that topic could
// have a topic's name, or a statement about another region, taken across under a
// policy that denies it. So a record crosses only if it is a fact of the source's
// own region about a topic that the link knows:
//
//   - progress: a partition, by topic id, of a local topic that the link copies, or
//     whose name is that of a local topic of the target (its seats wait for the
//     progress of every region, also of one whose records are denied to it);
//   - incarnations: a topic that the patterns include and the policy does not deny,
//     also when it has not been listed yet, for they are written once;
//   - restrictions: what the link itself has announced for its own target;
//   - settings: to the last byte what the link's own instance runs with.
//
// A Facts is safe for use by several goroutines.
type Facts struct {
	from, to router.Region
	matcher  *router.Matcher
	border   *residency.Guard // nil: no policy
	settings func() []byte    // value of the own record of settings; nil: none crosses

	mu        sync.Mutex
	topics    map[string]FactTopic // guarded by mu, as everything below
	announced map[string]bool
	version   uint64          // of the policy that mayName is about
	mayName   map[string]bool // what was asked, at most maxAsked
}

// maxAsked bounds what is kept of the names in records, which anybody may choose.
const maxAsked = 10_000

// FactTopic is a local topic of the source.
type FactTopic struct {
	ID event.TopicID
	// Partitions is how many the topic's views can have.
	Partitions int
	// Shared: the target has a local topic of the name.
	Shared bool
}

// NewFacts starts without topics and announcements, so that only incarnations
// cross. Without a border nothing is denied. settings gives the value of the control record
// of settings that the own instance writes; nil: no settings cross.
func NewFacts(from, to router.Region, matcher *router.Matcher, border *residency.Guard, settings func() []byte) *Facts {
	return &Facts{from: from, to: to, matcher: matcher, border: border, settings: settings, announced: map[string]bool{}}
}

// Know tells which local topics the source has, by name, instead of those known
// before. Facts keeps the map.
func (f *Facts) Know(topics map[string]FactTopic) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics = topics
}

// named tells whether patterns and policy let the target hear of a topic, as they
// are now; the caller holds mu.
func (f *Facts) named(topic string) bool {
	if !f.matcher.Match(topic).Included {
		return false
	}
	if f.border == nil {
		return true
	}
	if v := f.border.Version(); v != f.version || f.mayName == nil || len(f.mayName) >= maxAsked {
		f.version, f.mayName = v, map[string]bool{}
	}
	yes, asked := f.mayName[topic]
	if !asked {
		yes = f.border.Rule(topic, f.from.Name, f.to.Name).Effect != residency.Deny
		f.mayName[topic] = yes
	}
	return yes
}

// Announced tells that the link is about to announce a restriction of a topic for
// its target. It cannot be taken back, as the restriction cannot.
func (f *Facts) Announced(topic string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.announced[topic] = true
}

// carries tells whether a record of the control topic goes to the target.
func (f *Facts) carries(key, value []byte) bool {
	c, err := control.ParseClaim(key, value)
	if err != nil || c.Origin != 0 && c.Origin != f.from.ID {
		return false
	}
	if c.Type == control.TypeSettings { // its bytes are free, so none but the link's own instance chooses them
		return c.Origin == f.from.ID && f.settings != nil && bytes.Equal(value, f.settings())
	}
	if router.CheckTopic(c.Topic) != nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t, known := f.topics[c.Topic]
	switch c.Type {
	case control.TypeProgress:
		return known && c.ID == t.ID && int(c.Partition) < t.Partitions && (t.Shared || f.named(c.Topic))
	case control.TypeIncarnation:
		return (!known || int(c.Partition) < t.Partitions) && f.named(c.Topic)
	case control.TypeRestriction:
		return c.To == f.to.ID && f.announced[c.Topic]
	}
	return false
}
