// Package names knows the forms of names that people write and that several packages
// check: regions, topics, globs of topics.
package names

// MaxTopic is the length of the longest topic name that Kafka accepts.
const MaxTopic = 249

// IsRegion reports whether a name has a region's form: [a-z][a-z0-9-]{0,30}. The form
// excludes the separator of remote names, so that splitting one at its first separator
// is exact.
func IsRegion(name string) bool {
	if len(name) < 1 || len(name) > 31 || name[0] < 'a' || name[0] > 'z' {
		return false
	}
	for i := range len(name) {
		if c := name[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
			return false
		}
	}
	return true
}

// HasTopicBytes reports whether every character of a name may be in a topic's name.
func HasTopicBytes(name string) bool {
	for i := range len(name) {
		if !topicByte(name[i]) {
			return false
		}
	}
	return true
}

func topicByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}
