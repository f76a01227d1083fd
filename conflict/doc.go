// Package conflict decides what a set of events means: which values of an entity
// are live, which of them is shown, which copy of a retried write stands, and
// what the conflict feed says about the others. It is pure: no clock, goroutine,
// file or socket; Partition.Step takes judged items and gives back what has to be
// written. Package conflict/view puts that into Kafka.
//
// # Guarantee
//
// The state of an entity is a function of the set of events applied, never of
// the order in which they came. The rules are:
//
//   - An event counts if its origin's log has it valid and the table of the ownership
//     register that is in force (event.ValidityTable) does not call it an orphan. Orphans
//     have no part in any other rule; their offsets stay in contexts and vectors.
//   - The valid copies of one idempotency key, ordered by (stamp, region, event
//     id), fall into groups: the smallest copy begins a group, every copy within
//     one window of its stamp belongs to it, the next one begins another. The first
//     of a group stands, the others are void (twins).
//   - The cover of an entity is the join of the contexts, own entry included, of
//     all its standing events, dead ones too.
//   - A standing event is live iff the cover reaches no copy of its group under
//     the same entity. So every region has at most one live value.
//   - The winner is the live value that the topic's policy picks: under lww and keep
//     the greatest by event.Less.
//
// Copies are told apart by entity key and never by fingerprint, because a
// residency action may leave a fingerprint out in some regions. A key that was
// reused for another entity makes the later copy void there, but seeing that
// copy is not seeing the write that stands.
//
// On an events topic every event is emitted once: a key is emitted as often as its
// copies make groups, and only the event in hand ever is, so that the records of an
// origin keep their order. Which copy of a group that is depends on what came first;
// the others are its aliases. A copy that comes so late that it splits a group can
// make the emitted copy one of the group's neighbour, with the same count of effects.
// Only where an orphan was emitted is a record taken back, by a retraction; if another
// copy of its write has no record, the orphan's goes over to that copy instead.
//
// # Policies
//
// What is shown of several live values, what the feed says of the others, and what
// answers hold of them is a policy's to say: each is one file, policy_NAME.go, and
// one entry of Policies (policy.go).
//
// # Correction
//
// An event that stops standing is revoked: its entity is folded again from its base and the
// metas of all its events above that. It is one operation, whatever the cause: a smaller twin
// that comes late, or a cut that becomes known after the event was folded.
//
// Cuts come in two steps. Every event folded that a new table makes an orphan comes
// once more, as an Orphan with the table; each is taken out and noted (Orphaned). Then
// Cuts puts the table in force. A crash between leaves the old table in force with
// some events taken out: they stay out, and all of it is done again.
//
// # Below the frontier
//
// No event at or below the frontier (Partition.Raise) is revoked any more, and it parts no two
// copies of a key. What the events there have made of an entity is its Base: the state
// itself as long as the entity rests, else a record beside it. So only what lies above has
// to be kept (Partition.Tidy).
//
// HAZARD: a frontier that is too high by one event makes regions differ for good. A refold
// needs the metas of every event above the base, so a log that retention has cut above
// Position.Needed can give it too little; the live values kept in the state are then joined to
// what is left.
package conflict
