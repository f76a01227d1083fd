// Package residency decides what may leave a region.
//
// A [Policy] is read from a file and says, for each way that a record may go
// (topic, from, to), which rules speak about it; a [Ruling] is that answer. Nothing
// is allowed that no rule allows; a rule that denies wins over all that allow; the
// order of rules does not matter; and whatever cannot be decided is denied: an error
// in the predicate of a deny rule counts as a match, in that of an allow rule as
// none.
//
// Everything here is a function of its arguments, but for [Load] and for [Guard],
// which holds the policy in force and gets the time from its caller.
package residency
