// Package embed runs the engines that geogate needs beside it, a Kafka broker
// and a NATS server, inside the calling process.
//
// They are the default of one binary without any set-up: the demo, the tests,
// and a region that has no cluster of its own yet. The Kafka side is franz-go's
// kfake, kept on disk and written through with fsync; the NATS side is the
// ordinary nats-server with JetStream. Both give what the code above needs and
// nothing else, seeds for one and a dialer for the other, so that nothing above
// can tell an embedded engine from a real one. kfake alone does not keep
// transactions whole over a kill of the process, and its log cleaner loses records;
// StartKafka mends and cleans its files before it runs it.
//
// HAZARD: kfake is a test broker. It takes memory for a request by the length that
// the request claims, panics at one of an unknown kind, believes what a batch says
// of itself, knows no authentication, and deviates from Kafka in details. A front
// before it refuses such requests; and it is bound to loopback addresses only.
package embed
