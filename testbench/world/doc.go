// Package world runs several regions in one process, for tests of what they
// promise together.
//
// Each region has a Kafka of its own (package embed, kept in a temporary
// directory) and instances that are exactly what the program runs: the
// components of package node, started in their order and stopped in the reverse
// one. Every connection of an instance goes through a proxy of package cutproxy,
// one to its own cluster and one for each link's target, so a test can cut a
// link, lose an answer, or take an instance away from the world at once.
//
// Tests talk to the regions as clients do, over HTTP, and look at what really
// happened in the Kafkas, past the proxies. Nothing waits by sleeping: whatever
// must come about is asked for again until it has, or until a deadline.
package world
