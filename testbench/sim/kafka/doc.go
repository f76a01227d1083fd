// Package kafka models an Apache Kafka cluster as a passive state machine in
// virtual time: logs, producer ids and epochs, transactions, watermarks, leader
// epochs, compaction and truncation. It has no socket, goroutine or clock of its
// own; the scheduler that owns it decides when a request lands and how long the
// markers of a transaction take.
//
// It models what makes protocols above Kafka go wrong: an EndTxn whose OK comes
// before its markers, markers that reach one partition long after another, late
// and repeated produces, an Init that aborts the transaction before it, readers
// that list before a record is superseded and read after compaction took it.
// The behaviour follows measurements of Apache Kafka 4.3 and 3.9.
package kafka
