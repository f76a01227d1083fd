// Package retention warns before a Kafka deletes what a gateway still needs: it compares
// the settings of topics with what their readers need, also after somebody has changed
// them, and watches how near the start of a log has come to what is read next.
//
// What has been deleted too early is an incident (internal/incident). This package is for
// the time before that.
package retention
