//go:build unix

// Package apache runs real one-broker Apache Kafka clusters for tests and
// benchmarks: plain Java processes on free loopback ports, without scripts or
// images.
//
// Where the embedded broker and Kafka differ, Kafka is right; this package is
// how a test asks it. Maven resolves the artifacts to a class path once, which
// is then kept in a cache directory. A broker's log is a file beside its data,
// and a broker never outlives the process that started it: Stop and Kill end
// its whole process group, and on Linux the kernel does so when the parent dies.
//
// Starting Java costs seconds and hundreds of megabytes, so tests call Require
// or Wanted first: without GEOGATE_TEST_KAFKA=1 such a test is skipped or does less. Its
// name must contain Apache, by which make kafka finds it. A package with many such tests
// starts its brokers once, with a Pool.
package apache
