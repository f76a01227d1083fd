// Package view runs the fold of a seat's partition on Kafka and serves reads of
// what it gives.
//
// # Guarantee
//
// One fold step is one transaction of geogate.fold.<topic>.<partition>: merged
// records, conflict records, entity states, the vector, and from time to time the
// seat's progress. So the vector in the state topic is the input position, and
// whatever is folded is folded once. Badger caches the state topic; losing it
// costs reading the state topic again, and nothing is emitted twice.
//
//	Fold ──► queue per origin ──► conflict.Partition.Step ──► one transaction ──► Badger ──► Committed
//	            ▲ held: stamp too far ahead, or not in the journal yet
//
// What a cut takes out of the merged view is written in such steps, too: orphans
// first, the table that makes them orphans with the vector of the last one.
//
// After any error of a transaction the answer is the same: initialise the producer
// again, which ends what was open, read the state topic to a high watermark
// listed after that, and go on from the vector found there with what is queued.
//
// # Assumptions
//
// The journal (a seat.Sink) is fed before the fold. A view folds no item that its
// journal does not have, and none at all until the journal has every event below
// the committed vector: a refold needs them.
//
// HAZARD: the state topic has one writer, this transactional id. A record that
// someone else writes there is taken as state.
//
// Byte layouts: docs/format/state.md.
package view
