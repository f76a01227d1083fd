package control

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/geogate/geogate/internal/event"
)

// TopicKind says why we write a topic.
type TopicKind uint8

// The kinds of topics in the registry. A topic that is in no record is local.
const (
	KindRemote  TopicKind = 1 // a copy of another region's local topic
	KindDerived TopicKind = 2 // made by us from others; never replicated
)

// Use says what a derived topic is for.
type Use uint8

// The uses of derived topics.
const (
	UseMerged     Use = 1
	UseState      Use = 2
	UseDeadLetter Use = 3
	UseOrphans    Use = 4
	UseFeed       Use = 5
)

// String is the use's name in lists.
func (u Use) String() string {
	switch u {
	case UseMerged:
		return "merged"
	case UseState:
		return "state"
	case UseDeadLetter:
		return "dead-letter"
	case UseOrphans:
		return "orphans"
	case UseFeed:
		return "feed"
	}
	return fmt.Sprintf("use-%d", uint8(u))
}

// Names knows how the topics are called that geogate writes; *router.Topology
// implements it.
type Names interface {
	// CheckRecord says how the name of a registry record differs from the one that a
	// topic of its kind has.
	CheckRecord(x Topic) error
	// Reserved tells whether a name has the form of a remote or merged topic.
	Reserved(name string) bool
}

// Registry is what the records of _geogate.topics say about topics, in memory. A
// record alone proves little, for whoever can write to that topic can forge one: it
// counts only under the name that a topic of its kind has, and a tombstone or a record
// that cannot be used makes no topic local whose name has a form of geogate's. A
// Registry is not safe for use by several goroutines.
type Registry struct {
	names   Names // nil: every name will do
	records map[string]Topic
	deleted map[string]Topic // what was last recorded of those with a tombstone
}

// NewRegistry starts without records.
func NewRegistry(names Names) *Registry {
	return &Registry{names: names, records: map[string]Topic{}, deleted: map[string]Topic{}}
}

// Apply takes the next record. An error says why it does not count.
func (g *Registry) Apply(key, value []byte) error {
	name := string(key)
	known, ok := g.records[name]
	if value == nil {
		delete(g.records, name)
		switch {
		case ok:
			g.deleted[name] = known
		case g.reserved(name):
			g.deleted[name] = Topic{Name: name}
		}
		return nil
	}
	x, err := ParseTopic(key, value)
	if err == nil && g.names != nil {
		err = g.names.CheckRecord(x)
	}
	switch {
	case err == nil:
		g.records[name] = x
		delete(g.deleted, name)
	case !ok && g.reserved(name):
		// Compaction may have kept this record and dropped the one that says whose
		// the topic is.
		g.records[name] = Topic{Name: name}
	}
	return err
}

func (g *Registry) reserved(name string) bool {
	return len(name) <= MaxTopicName && (g.names == nil || g.names.Reserved(name))
}

// Lookup gives the record of a topic that exists under an id; ok is false for a
// local one. A record whose Kind is 0 says that the topic is not local but that
// nothing else is certain. What a tombstone has deleted still holds for the topic
// that it was about.
func (g *Registry) Lookup(name string, id event.TopicID) (x Topic, ok bool) {
	if x, ok := g.records[name]; ok {
		return x, true
	}
	x, ok = g.deleted[name]
	if !ok || x.Kind != 0 && x.ID != id && x.ID != (event.TopicID{}) {
		return Topic{}, false
	}
	return x, true
}

// Record gives the record of a name whatever topic there is; ok is false if there is
// none, or a tombstone.
func (g *Registry) Record(name string) (x Topic, ok bool) {
	x, ok = g.records[name]
	return x, ok
}

// Topics are all usable records, by name.
func (g *Registry) Topics() []Topic { return usable(g.records) }

// Deleted are the last usable records of what has a tombstone, by name.
func (g *Registry) Deleted() []Topic { return usable(g.deleted) }

func usable(records map[string]Topic) (out []Topic) {
	for _, x := range records {
		if x.Kind != 0 {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b Topic) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Topic is a record of the registry (_geogate.topics): one topic that we write as
// remote or derived, and so must never take for a local one.
type Topic struct {
	Name string
	ID   event.TopicID
	Kind TopicKind

	// Remote topics.
	Origin   event.RegionID
	Link     string
	Source   string        // name at the origin
	SourceID event.TopicID // id at the origin

	// Derived topics.
	Use Use
	Of  string // the local topic it is made from; empty for a feed
	// Partitions is, of a state topic, over how many partitions of the local topic keys
	// were spread when it was first used. 0: an earlier version did not write it down.
	Partitions int32
}

// AppendKey appends the record key: the topic name.
func (x Topic) AppendKey(b []byte) []byte { return append(b, x.Name...) }

// AppendValue appends the record value: u8 version, u8 kind, topic id; then for a
// remote topic u8 origin, length-prefixed link and source name, source topic id;
// for a derived one u8 use, length-prefixed name of the topic it is made from. If it has
// a number of partitions, the version is 2 and the number, a uvarint, comes last.
func (x Topic) AppendValue(b []byte) []byte {
	version := len(b)
	b = append(append(b, codecVersion, byte(x.Kind)), x.ID[:]...)
	if x.Kind == KindRemote {
		b = event.AppendPrefixed(append(b, byte(x.Origin)), []byte(x.Link))
		b = event.AppendPrefixed(b, []byte(x.Source))
		return append(b, x.SourceID[:]...)
	}
	b = event.AppendPrefixed(append(b, byte(x.Use)), []byte(x.Of))
	if x.Partitions > 0 {
		b[version] = topicVersion
		b = binary.AppendUvarint(b, uint64(x.Partitions))
	}
	return b
}

const (
	// topicVersion is that of a record of the registry with a number of partitions.
	topicVersion = 2
	// maxPartitions is more than any topic has.
	maxPartitions = 1 << 20
)

// ParseTopic reads a record of the registry.
func ParseTopic(key, value []byte) (Topic, error) {
	if len(key) == 0 || len(key) > MaxTopicName {
		return Topic{}, fmt.Errorf("parse topic record: %w: name of %d bytes", event.ErrMalformed, len(key))
	}
	r := event.NewReader(value)
	version := r.Uint8()
	if version != codecVersion && version != topicVersion {
		r.Fail("record version %d is not supported", version)
	}
	x := Topic{Name: string(key), Kind: TopicKind(r.Uint8())}
	copy(x.ID[:], r.Bytes(len(x.ID)))
	switch x.Kind {
	case KindRemote:
		x.Origin = r.Region()
		x.Link = string(r.Prefixed(maxText))
		x.Source = readName(r)
		copy(x.SourceID[:], r.Bytes(len(x.SourceID)))
	case KindDerived:
		x.Use = Use(r.Uint8())
		x.Of = string(r.Prefixed(MaxTopicName))
		if x.Use < UseMerged || x.Use > UseFeed {
			r.Fail("use %d is not known", x.Use)
		}
		if version == topicVersion {
			if x.Partitions = int32(r.UvarintMax(maxPartitions)); x.Partitions == 0 {
				r.Fail("a state topic of no partitions")
			}
		}
	default:
		r.Fail("kind %d is not known", x.Kind)
	}
	if err := r.Close(); err != nil {
		return Topic{}, fmt.Errorf("parse topic record: %w", err)
	}
	return x, nil
}
