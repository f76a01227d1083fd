// Package connect connects to Kafka clusters: TLS, SASL, the addresses of brokers behind
// tunnels, and what an operator is told when a broker refuses.
//
// A [Config] is the part of the configuration file; [Open] reads the files that it names and
// returns a [Cluster]. Every client of that cluster is made by [NewClient] with its
// [Cluster.Opts]. [Cluster.Run] reads the files again when they change: new connections
// use the new certificates and secrets, open ones continue. A file
// that cannot be used changes nothing, and is reported until it can be used.
//
// A broker that cannot be reached is retried by the client, at its pace. One that answers and
// refuses, the credentials or TLS, is retried at most once in 15 s, by all clients together:
// it would refuse the next attempt too, and many failures lock accounts.
//
// docs/internals/connections.md says where to add a mechanism.
package connect
