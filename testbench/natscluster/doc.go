// Package natscluster builds the ownership register's servers for tests: three in
// one process whose routes run through lines that can be cut, and which can be
// stopped, restarted and rolled back. Their advertised address is a dead one, so
// that no server goes around the lines. A Door loses what a client and a server in
// process say to each other.
package natscluster
