// Package expr compiles predicates over a record: CEL without loops, checked for
// type and cost before it is ever run.
//
// CEL's own rules for errors are not safe where an error means doubt: its || and
// && swallow an error on one side when the other decides. Here an error anywhere
// in what was evaluated makes the whole predicate an error, and what the caller
// makes of that is the caller's rule (in a policy: a deny rule matches, an allow
// rule does not).
//
// A predicate reads
//
//	key      string   the record key. A null key, one that is not UTF-8 or one longer than MaxText is an error.
//	headers  map      name → last value. Read by a name that is written in the predicate: headers["x"] or headers.x.
//	topic, from, to   strings
//
// Names of headers match without regard to the case of ASCII letters. A name that a
// record has in two spellings is an error for a predicate that names it.
//
// Reading a header that the record does not have is an error, also where CEL would
// not come to it, unless the predicate tests for that header: has(headers.x) or
// "x" in headers. The gateway's own headers (gg-…) are not among them.
package expr
