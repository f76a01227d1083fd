package router

import (
	"fmt"
	"strings"
)

// MaxTopicName is the longest topic name that Kafka accepts, in characters.
const MaxTopicName = 249

// Separator stands between the origin region and the topic in a remote name.
const Separator = "."

// The topics of geogate's own that exist once in a region. All are internal:
// never replicated as data, never written by producers.
const (
	TopicsTopic       = "_geogate.topics"       // registry of remote and derived topics
	ControlTopic      = "_geogate.control"      // this region's facts for the others
	ConflictsTopic    = "_geogate.conflicts"    // the conflict feed
	IncarnationsTopic = "_geogate.incarnations" // lives of origin partitions
)

const (
	internalPrefix  = "_geogate."
	statePrefix     = internalPrefix + "state."
	positionsPrefix = internalPrefix + "positions."
	runsPrefix      = internalPrefix + "runs."
	controlPrefix   = ControlTopic + "."
	mergedSuffix    = ".merged"
)

// RemoteName is what a topic of region origin is called in every other region:
// <origin>.<topic>. [CheckTopic] tells whether it fits.
func RemoteName(origin, topic string) string { return origin + Separator + topic }

// ParseRemote splits a name of the form of [RemoteName]. That a name has the
// form does not make the topic remote: a local topic may be called us.orders.
// What a topic is stands in the registry.
func ParseRemote(name string) (origin, topic string, ok bool) {
	origin, topic, ok = strings.Cut(name, Separator)
	if !ok || topic == "" || CheckAlias(origin) != nil {
		return "", "", false
	}
	return origin, topic, true
}

// Merged is the name of the merged topic of a local topic: <topic>.merged.
func Merged(topic string) string { return topic + mergedSuffix }

// ParseMerged is the inverse of [Merged]. As with [ParseRemote], the form alone
// does not make a topic derived.
func ParseMerged(name string) (topic string, ok bool) {
	topic, ok = strings.CutSuffix(name, mergedSuffix)
	return topic, ok && topic != ""
}

// StateTopic is the name of the topic with the folded state of a local topic.
func StateTopic(topic string) string { return statePrefix + topic }

// ParseState is the inverse of [StateTopic].
func ParseState(name string) (topic string, ok bool) { return after(name, statePrefix) }

// PositionsTopic is where the link from region from keeps its positions; it lies
// in the link's target.
func PositionsTopic(from string) string { return positionsPrefix + from }

// ParsePositions is the inverse of [PositionsTopic].
func ParsePositions(name string) (from string, ok bool) { return regionAfter(name, positionsPrefix) }

// RunsTopic is where the link from region from keeps its runs; it lies in the
// link's target.
func RunsTopic(from string) string { return runsPrefix + from }

// ParseRuns is the inverse of [RunsTopic].
func ParseRuns(name string) (from string, ok bool) { return regionAfter(name, runsPrefix) }

// ControlFrom is the copy of region from's control topic in another region.
func ControlFrom(from string) string { return controlPrefix + from }

// ParseControlFrom is the inverse of [ControlFrom].
func ParseControlFrom(name string) (from string, ok bool) { return regionAfter(name, controlPrefix) }

func after(name, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	return rest, ok && rest != ""
}

func regionAfter(name, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok || CheckAlias(rest) != nil {
		return "", false
	}
	return rest, true
}

// Internal tells whether a topic is geogate's own or the broker's, by its name.
// Such a topic is never replicated as data, whatever a pattern says, and never
// written by a producer.
func Internal(name string) bool {
	return strings.HasPrefix(name, internalPrefix) || strings.HasPrefix(name, "__")
}

// Form is what a topic's name looks like. Only for [FormInternal] does the name
// decide; for the others the registry does.
type Form uint8

// The forms of names.
const (
	FormPlain    Form = iota // neither of the others
	FormInternal             // see [Internal]
	FormRemote               // <region>.<topic> with a region of the deployment
	FormMerged               // <topic>.merged
)

// String is the form's name.
func (f Form) String() string {
	return [...]string{"plain", "internal", "remote", "merged"}[f]
}

// FormOf tells what a topic's name looks like in a deployment with the regions
// of t. A remote copy of something that ends in .merged looks remote.
func (t *Topology) FormOf(name string) Form {
	if Internal(name) {
		return FormInternal
	}
	if origin, _, ok := ParseRemote(name); ok {
		if _, known := t.ID(origin); known {
			return FormRemote
		}
	}
	if _, ok := ParseMerged(name); ok {
		return FormMerged
	}
	return FormPlain
}

// CheckTopic returns [ErrTopicName] unless Kafka accepts the name: 1 to 249 of
// letters, digits, dot, underscore and hyphen, and neither "." nor "..".
func CheckTopic(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("%w: %q", ErrTopicName, name)
	case len(name) > MaxTopicName:
		return fmt.Errorf("%w: %d characters, at most %d", ErrTopicName, len(name), MaxTopicName)
	}
	for i := range len(name) {
		if !topicByte(name[i]) {
			return fmt.Errorf("%w: %q has a character other than a-z, A-Z, 0-9, dot, underscore and hyphen", ErrTopicName, name)
		}
	}
	return nil
}

func topicByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}
