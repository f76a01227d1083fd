package node

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/geogate/geogate/router/ownership"
)

// Version is the version of geogate, as status and the version command show it.
const Version = "0.1.0"

// Component is a part of an instance that runs as long as the instance does.
// Whoever runs the components starts them in their order and stops them in the
// reverse order, each before the one that it depends on.
type Component struct {
	// Name says in logs what runs.
	Name string
	// Run blocks until ctx is done, then ends what it has started and returns nil
	// or ctx's error. Any other return means that the instance cannot go on.
	Run func(ctx context.Context) error
}

// Deps are what an instance gets from the program that runs it.
type Deps struct {
	// Logger takes the instance's log. Records carry no payloads and no keys.
	Logger *slog.Logger
	// Registry takes the instance's metrics, and its management listener shows
	// what is in it.
	Registry *prometheus.Registry
	// Seeds are the brokers of the own region's Kafka when the configuration
	// embeds it: the program has started it and knows its addresses. Otherwise
	// the configuration's seeds are used and this is empty.
	Seeds []string
	// ReachTimeout is how long New waits for the own region's Kafka. Zero: 30 s.
	ReachTimeout time.Duration
	// RetentionEvery is how often the instance looks whether logs are kept for long enough.
	// Zero: retention.Every.
	RetentionEvery time.Duration
	// JoinEpochs is how many ended epochs of the region a unit's ownership record has before
	// they are joined. Zero: 8.
	JoinEpochs int
	// NATS reaches the server that the configuration embeds: the program has
	// started it. It is nil when there is none.
	NATS InProcessDialer
	// Servers lists and removes the servers of the register's cluster, if it is embedded;
	// else nil. ServerID gives the id that the cluster has for a server's name.
	Servers  ownership.Servers
	ServerID func(name string) string
	// OwnRegister means that no other region can reach that server: its register
	// says nothing of what they own.
	OwnRegister bool
	// AcceptSettings starts the instance although its settings differ from those that its
	// region ran with, and uses them from now on.
	AcceptSettings bool
	// Uncompressed writes every batch as it is, so that a scan for bytes
	// finds them in sockets and files.
	Uncompressed bool
}

// InProcessDialer gives connections to a server inside the process.
type InProcessDialer interface {
	InProcessConn() (net.Conn, error)
}
