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
//
// About half of the seeds have an ownership register besides (package register):
// instances hold leases and lose them, operators fence and unfence regions and units,
// tables of what counts reach seats and links late and out of step, folds revoke,
// links stop at cuts. A third have residency policies that change. The checkers
// judge places by the register's last word and by the audit, in a way of their own.
package world
