package control

import (
	"fmt"

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
}

// AppendKey appends the record key: the topic name.
func (x Topic) AppendKey(b []byte) []byte { return append(b, x.Name...) }

// AppendValue appends the record value: u8 version, u8 kind, topic id; then for a
// remote topic u8 origin, length-prefixed link and source name, source topic id;
// for a derived one u8 use, length-prefixed name of the topic it is made from.
func (x Topic) AppendValue(b []byte) []byte {
	b = append(append(b, codecVersion, byte(x.Kind)), x.ID[:]...)
	if x.Kind == KindRemote {
		b = event.AppendPrefixed(append(b, byte(x.Origin)), []byte(x.Link))
		b = event.AppendPrefixed(b, []byte(x.Source))
		return append(b, x.SourceID[:]...)
	}
	return event.AppendPrefixed(append(b, byte(x.Use)), []byte(x.Of))
}

// ParseTopic reads a record of the registry.
func ParseTopic(key, value []byte) (Topic, error) {
	if len(key) == 0 || len(key) > MaxTopicName {
		return Topic{}, fmt.Errorf("parse topic record: %w: name of %d bytes", event.ErrMalformed, len(key))
	}
	r := event.NewReader(value)
	readVersion(r)
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
	default:
		r.Fail("kind %d is not known", x.Kind)
	}
	if err := r.Close(); err != nil {
		return Topic{}, fmt.Errorf("parse topic record %q: %w", key, err)
	}
	return x, nil
}
