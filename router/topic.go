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
// That a name has this form does not make the topic remote: a local topic may be
// called us.orders. What a topic is, the registry says; the same holds for
// [Merged].
func RemoteName(origin, topic string) string { return origin + "." + topic }

// Merged is the name of the merged topic of a local topic: <topic>.merged.
func Merged(topic string) string { return topic + ".merged" }

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
