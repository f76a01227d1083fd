// Package control follows what a region's gateways and links write down about
// the logs rather than in them: barriers and progress in _geogate.control, the
// registry of topics in _geogate.topics, incarnations, and for every other region
// its control facts, link positions and runs.
//
// It answers questions of the kind "is this marker a barrier?", "which source
// offset has this record?", "what stamp has every region passed?". Some answers
// are that something is absent, and an absence counts only after reading on to a
// high watermark that was listed after the question (or after the record that
// raised it) was seen; else the record may be there, unread. That rule is kept in
// Barriers and Positions, which are pure, and in the consumers that feed them.
//
// Barriers are read uncommitted: a barrier record is never transactional, and
// committed reading could stall behind a foreign transaction. Everything else is
// read committed.
//
// Byte layouts of the records: docs/format/control.md.
package control
