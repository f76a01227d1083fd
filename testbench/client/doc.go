// Package client is the testbench's one client of a running region: its HTTP API
// as a careful user's program calls it, followed streams, and the logs in its
// Kafka. It knows what is documented and nothing else, so what it decodes has
// types of its own; only records of logs are decoded with package event.
//
// It judges nothing but the void rule of a log (see Origin). What the records
// should amount to is for its users, each of which has a fold of its own.
package client
