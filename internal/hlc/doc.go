// Package hlc is the hybrid logical clock that stamps events (Kulkarni et al.,
// "Logical Physical Clocks", 2014).
//
// A Stamp is one uint64: 48 bits of Unix milliseconds and a 16-bit counter. It
// sorts as a number and, in its 8 big-endian bytes, as a string. Stamps give
// concurrent events an order that respects causality as far as the clock has
// observed it; they never decide what is concurrent (contexts do).
//
// HAZARD: last-writer-wins is only as fair as the clocks. A region whose wall
// clock runs ahead wins ties it should lose, up to Bounds.MaxDrift; beyond that
// its events are held (Bounds.Judge), never clamped, because every region must
// see the same stamp.
package hlc
