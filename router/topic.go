package router

import (
	"fmt"
	"strings"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/names"
)

// RemoteName is what a topic of region origin is called in every other region:
// <origin>.<topic>. [CheckTopic] tells whether it fits.
//
// What a topic is, its name and the registry say together. A record counts only under
// the name that a topic of its kind has ([Topology.CheckRecord]); a name with this form
// of another region is never local, not even without a record, and one with the form
// of [Merged] only if nothing says otherwise.
func RemoteName(origin, topic string) string { return origin + "." + topic }

// Merged is the name of the merged topic of a local topic: <topic>.merged.
func Merged(topic string) string { return topic + ".merged" }

// CheckRecord implements [control.Names]. A remote topic of a region that the
// topology no longer has may be called anything.
func (t *Topology) CheckRecord(x control.Topic) error {
	want := x.Name
	switch {
	case x.Kind == control.KindRemote && t.Name(x.Origin) != "":
		want = RemoteName(t.Name(x.Origin), x.Source)
	case x.Use == control.UseMerged:
		want = Merged(x.Of)
	case x.Use == control.UseState:
		want = control.StateOf(x.Of)
	}
	if x.Name != want {
		return fmt.Errorf("%w: the registry's record of %s is about a topic that is called %s", ErrTopicName, x.Name, want)
	}
	return nil
}

// Reserved implements [control.Names].
func (t *Topology) Reserved(name string) bool {
	_, merged := MergedOf(name)
	return merged || Internal(name) || t.RemoteForm(name, "")
}

// RemoteForm tells whether a name has the form of a remote topic in the region own:
// it begins with the name of another region.
func (t *Topology) RemoteForm(name, own string) bool {
	for _, r := range t.regions {
		if r.Name != own && strings.HasPrefix(name, RemoteName(r.Name, "")) {
			return true
		}
	}
	return false
}

// ByName tells of a topic that is in no record of the registry of region own whether
// its name says that it is not local: it is called like a remote topic, or like the
// merged topic of a topic that has state. A record may have been deleted, or never have
// been written, as for copies that another replicator made. exists tells whether the
// region has a topic. Kind 0 says that nothing else is certain.
func (t *Topology) ByName(name, own string, exists func(topic string) bool) (x control.Topic, ok bool) {
	if t.RemoteForm(name, own) {
		return control.Topic{Name: name}, true
	}
	of, merged := MergedOf(name)
	if !merged || !exists(control.StateOf(of)) {
		return control.Topic{}, false
	}
	return control.Topic{Name: name, Kind: control.KindDerived, Use: control.UseMerged, Of: of}, true
}

// MergedOf gives the topic whose merged topic has a name of this form.
func MergedOf(name string) (topic string, ok bool) {
	topic, ok = strings.CutSuffix(name, Merged(""))
	return topic, ok && topic != ""
}

// Internal tells whether a topic is geogate's own or the broker's, by its name.
// Such a topic is never replicated as data, whatever a pattern says, and never
// written by a producer.
func Internal(name string) bool {
	return strings.HasPrefix(name, control.InternalPrefix) || strings.HasPrefix(name, "__")
}

// CheckTopic returns [ErrTopicName] unless Kafka accepts the name: 1 to 249 of
// letters, digits, dot, underscore and hyphen, and neither "." nor "..".
func CheckTopic(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("%w: %q", ErrTopicName, name)
	case len(name) > control.MaxTopicName:
		return fmt.Errorf("%w: %d characters, at most %d", ErrTopicName, len(name), control.MaxTopicName)
	}
	if !names.HasTopicBytes(name) {
		return fmt.Errorf("%w: %q has a character other than a-z, A-Z, 0-9, dot, underscore and hyphen", ErrTopicName, name)
	}
	return nil
}
