// Package connect is how a Kafka cluster is reached: TLS, SASL, the addresses of its brokers
// behind tunnels, and what an operator is told when a broker refuses.
//
// A [Config] is the part of the configuration file; [Open] reads the files that it names and
// gives a [Cluster], whose [Cluster.Opts] every client of that cluster is made with, by
// [NewClient]. [Cluster.Run] reads the files again when they change: connections that are
// made from then on have the new certificates and secrets, those that are open go on. A file
// that cannot be used changes nothing and is reported until it can.
//
// A broker that cannot be reached is retried by the client, at its pace. One that answers and
// refuses, the credentials or TLS, is retried at most once in 15 s, by all clients together:
// it would refuse the next attempt too, and many failures lock accounts.
//
// docs/internals/connections.md says where to add a mechanism.
package connect
