package node

import "fmt"

const (
	// ownFiles is what an instance needs beside its listeners: the store, the
	// connections to Kafka and to the register, the logs of an embedded Kafka.
	ownFiles = 512
	// readFiles is what a read needs: connections to the brokers.
	readFiles = 3
	// fewestConnections are open to producers and consumers however few files the
	// process may open.
	fewestConnections = 16
)

// dataConnections is how many connections the data listener may have so that
// enough files are left for the instance itself and for its operators. reduced says
// why that is less than configured; "" if it is not.
func dataConnections(c Config, files int) (n int, reduced string) {
	n = c.HTTP.MaxConnections
	room := files - c.Management.MaxConnections - ownFiles - 2*readFiles*c.HTTP.MaxReaders
	if files == 0 || room >= n {
		return n, ""
	}
	n = min(n, max(room, fewestConnections))
	return n, fmt.Sprintf("the process may open %d files, too few for http.max_connections, %d: only %d are accepted; raise the limit of open files (ulimit -n, LimitNOFILE)",
		files, c.HTTP.MaxConnections, n)
}
