// Package router knows where things go: which regions there are, what topics are
// called in each of them, which partition a key has, and which topics a link
// carries. Who owns what is in its sub-package ownership.
//
// What is here takes no clock, no socket and no goroutine. Names and partitions are
// protocol: other regions, and readers that are not ours, compute the same ones, so
// none of these functions may ever change its answer.
package router
