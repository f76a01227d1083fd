// Package seat holds one instance's place at a topic partition of its region:
// it accepts writes there, reads the partition back, judges every record of every
// origin, feeds the indexes and the fold, and stops when another instance has
// taken the place.
//
// # What it guarantees
//
//   - An answer is given only after the seat has read its own record back from the
//     log with no newer barrier before it. Whoever reads that log from then on
//     finds the record valid.
//   - A key is never marked as seen before the log has its record; a key whose
//     produce has no known outcome stays in flight until the record has been read
//     or a later barrier of the seat's own makes it void wherever it may land.
//   - The verdict of a record (Log) depends on the origin's log alone, so every
//     region and every reader, wherever it starts, comes to the same one.
//
// # How
//
//	Write ──► Core ──produce──► origin log ──tail──► index ──► Core ──► answer
//	            │                   ▲
//	            └─ barrier (Opener) ┘        inputs (committed) ──► sinks ──► fold
//
// Core and Log are pure: no clock, goroutine or socket of their own. Seat is the
// adapter that owns the goroutines of one partition; Tail owns the two consumers
// that all seats of an instance share.
//
// HAZARD: a topic that other principals may write lets them forge envelopes; the
// void rule protects against late and deposed writers, not against forgers.
package seat
