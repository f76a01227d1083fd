// Package replicate copies the local topics of one region's cluster to another's,
// as record batches, exactly once for read-committed readers.
//
// A [Link] is one direction and runs at the source. Its work is divided into
// shards; each shard is one transactional producer at the target. One transaction
// holds the copied records, the position that says how far the source is covered,
// and the runs that map target offsets to source offsets. They go in one flight:
// the link is the only writer of a remote topic, so it knows the offset that each
// batch will get before it sends it. An answer with another offset means a foreign
// writer or lost records, and the transaction is aborted.
//
// There is one recovery for everything: initialise the producer again (which
// aborts what was open), read the generation record and the committed positions,
// list the ends of the remote partitions, go on from there.
//
// [Core] is the protocol of a shard and [Agreement] that of a generation. Both are
// pure: they take no clock, goroutine or socket, and say what to do as effects.
// The rest of the package does it: reader.go fetches, shard.go produces, link.go
// discovers topics.
//
// Of a source log only the intervals count that the ownership register of its region
// holds (event.ValidityTable). A link sends nothing past a cut which it knew when it
// planned the transaction: it stops there, inside a batch if need be. A transaction
// that still waits for its target when such a cut becomes known is given up. Once the next
// interval's start is known it covers what lies between, carries its barriers with
// the next run, and goes on. The position is all that is kept of that.
// Which records inside an interval do not count is left to those who fold, for to
// find them every batch would have to be opened.
//
// Assumptions: the source's log does not change below the last stable offset
// except by compaction, retention and truncation; nobody else initialises this
// link's transactional ids.
//
// HAZARD: a foreign writer in a remote topic. Its records have no run and readers
// quarantine them; the link counts and records them and goes on, at the price of a
// second flight in the transaction that met them.
//
// Byte layouts: docs/format/link.md.
package replicate
