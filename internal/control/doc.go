// Package control reads and writes what gateways and links note about the logs, in
// topics beside the logs: barriers and progress in _geogate.control, the registry of
// topics in _geogate.topics, incarnations, and for every other region its control
// records, link positions and runs.
//
// It answers questions of the kind "is this marker a barrier?", "which source
// offset has this record?", "what stamp has every region passed?". Some answers
// are that something is absent, and an absence counts only after reading on to a
// high watermark that was listed after the question (or after the record that
// raised it) was seen; else the record may be there, unread. That rule is kept in
// BarrierIndex and LinkIndex, which are pure, and in the consumers that feed them.
//
// The own region's control topic is read twice: committed, like everything else,
// and uncommitted for what must count although its transaction is open or was
// aborted. That is barriers, which are written outside any transaction and must not
// wait for a foreign one, and the highest closed stamp that was ever published.
//
// To add a type of control record: a file record_NAME.go after the model of the
// others, a line in registered (record.go), and its layout in
// docs/format/control.md, where all byte layouts are.
package control
