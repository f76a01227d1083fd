package router

import "errors"

var (
	// ErrAlias is returned for a region name that does not have the form
	// [a-z][a-z0-9-]{0,30}.
	ErrAlias = errors.New("router: malformed region name")
	// ErrTopology is returned for regions that contradict each other.
	ErrTopology = errors.New("router: regions contradict each other")
	// ErrTopicName is returned for a name that Kafka does not accept for a topic,
	// among them names of more than [control.MaxTopicName] characters.
	ErrTopicName = errors.New("router: not a topic name")
	// ErrPattern is returned for a topic pattern that cannot be read.
	ErrPattern = errors.New("router: malformed topic pattern")
)
