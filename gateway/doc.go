// Package gateway is the edge that producers, consumers and operators touch: the
// HTTP API of a region on its data listener, and probes, metrics and status on its
// management listener.
//
// # What it guarantees
//
//   - A write is answered 200 only with what the seat read back from the log. Any
//     other answer says that nothing was stored, or that the outcome is unknown and
//     how to learn it.
//   - Limits come before parsing, parsing before any look at topics. What a body or
//     an answer has in memory is granted before it is taken (shares.go), so that no
//     client, however slow, takes what others need.
//   - What a page in a browser can send changes nothing (origin.go).
//   - A value of type json leaves as the bytes that came in: nothing is decoded and
//     written again on the way.
//   - Reads have no state here: a cursor holds a reader's place in the coordinates
//     of the origins, so any instance of any region can go on with it.
//
// # How
//
// A write is decoded, permitted, stored and answered: Server.writeRecords in
// write.go names the file of each step.
//
// The rest of the process is reached through the interfaces in ports.go. Errors of
// all of them become problems (RFC 9457) in problem.go and nowhere else. Kafka is
// read in logs.go by a bounded pool of clients without groups.
//
// # Goroutines
//
// Server.Run owns both listeners and, when it returns, has waited for every
// request. A request has one goroutine; a stream of writes has one more that reads
// lines ahead and one for each line in flight, and a merged read has one for each
// partition while it opens its views. The request waits for all of them.
// docs/internals/goroutines.md lists them with the callbacks.
//
// HAZARD: there is no authentication yet, so New refuses addresses that other
// machines can reach.
package gateway
