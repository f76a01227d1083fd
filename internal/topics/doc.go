// Package topics is the one place that makes topics in the region's Kafka, and that
// knows which of them are the region's own.
//
// A [Catalogue] makes geogate's internal topics before anything reads them, makes or
// checks those that the ownership policy declares, and derives the state and the
// merged topic of a local topic at its first use (create.go). A topic that exists and
// is not as it must be is refused, never changed (check.go). Each partition that is
// used gets a number for its incarnation, so that a topic that was deleted and
// recreated is not taken for the one before (identity.go).
package topics
