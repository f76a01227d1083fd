// Package txn writes to Kafka in transactions, batch by batch: the record batch
// codec (format version 2, and reading of the two before it), and a
// transactional Producer that speaks the protocol itself over the connections of
// a shared client.
//
// A client library's own transactional producer decides for its caller how
// records become batches, and restarts on its own after errors. A link must pass
// on batches as they are, predict the offset of each, and abort when anything is
// not as predicted; a seat must write markers without records. Hence this
// package. It promises one thing above all: when an answer is missing or odd, it
// never guesses. ErrUnclear means: what was asked may or may not have happened;
// call Init, which ends whatever was open, and read what is committed.
//
// The protocol is Apache Kafka's (KIP-98, KIP-360, KIP-890); the differences
// between broker generations that matter are described where they are handled.
//
// HAZARD: Kafka stores only the last of two entries for one partition in one
// produce request and answers once, so that the first is silently lost. A request
// is built in one place (flight.requests), which refuses such a pair.
package txn
