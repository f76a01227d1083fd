// Package judged has what a seat hands to the fold of its partition and to the
// fold's journal: the places of the origins' logs, each with the verdict on it. It
// has no rules of its own: internal/seat judges, conflict and conflict/view act on
// the verdict.
package judged
