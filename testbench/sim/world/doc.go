// Package world runs histories of a few regions in virtual time: the pure cores
// of seats, links, control, indexes and fold, exactly as the gateway links them,
// over modelled Kafka clusters. A seed decides everything: what clients write and
// retry and where, which requests are lost, late or repeated, when processes die,
// links are cut, logs compacted or truncated, and seats change hands. At the end
// everything is healed and drained, and checkers compare what the world holds
// with what a naive reading of the origin logs says.
//
// The files named for a part (seat, link, inputs, fold, control) are the same
// thin adapters that the product has around its cores, without sockets and
// goroutines.
package world
