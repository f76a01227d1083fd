// Package dedupe is the index of idempotency keys of one topic partition.
//
// The index is a cache: the origin logs hold every key in their records' headers
// and an index that is rebuilt from them equals the one that grew with them. It
// keeps every copy of a key, own and remote, fenced ones too, because which copy
// stands may change: a smaller stamp may arrive later, and a copy may be revoked.
//
// # Which copy answers a retry
//
// Among the copies that are not void, in the total order of stamps, the first
// stands and opens a window; copies inside the window are its twins; a copy past
// it opens another window. A retry is answered from the last window, unless that
// has expired: with the region's own copy there, whose coordinates its producer
// was given, else with the first.
//
// # First uses
//
// Nearly every key that is looked up was never used. Filters in memory (internal/keyset) know most
// such keys without the store; they are complete only once they have read every key that
// the store had when it was opened, and until then they know nothing.
//
// # When a key is forgotten
//
// A window has expired when every region's closed stamp has passed its end: then
// nothing can arrive any more that belongs to it. Neither wall clocks nor
// time-to-live settings decide, so a clock that jumps forgets nothing.
package dedupe
