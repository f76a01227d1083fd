// Package hostile holds tests only: what a neighbour can do to a running geogate. A
// producer with write access to one topic, a process on the same machine, a web page, a
// hundred slow clients, garbage in internal topics: none of them may end the process,
// take its memory, stop other partitions or clients, or leave the status green.
//
// Each test starts deployments of the built program, without the race detector, as child
// processes on loopback ports ([deploy] in deployment_test.go), and samples their resident
// memory. With
// GEOGATE_TEST_HOSTILE=1 (make hostile) they run, beside embedded Kafkas; with
// GEOGATE_TEST_KAFKA=1, too, beside Apache Kafka. Otherwise they are skipped.
//
// A kind of attack is a file: its test, and what forges the bytes.
package hostile
