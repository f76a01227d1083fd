package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/loopback"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Config configures a Server. Zero members take the defaults named.
type Config struct {
	Region   event.RegionID   // own region
	Topology *router.Topology // all regions of the deployment
	Data     ListenerConfig   // for producers and consumers
	Manage   ListenerConfig   // for probes and operators
	Pprof    bool             // serve profiles on the management listener

	MaxBody   int64 // bytes of a request's body; default 32 MiB
	MaxRecord int64 // bytes of a record's key, value and headers; default 1 MiB
	// MaxInflight is how many bytes of bodies all requests hold together, and how
	// many bytes of answers that their clients have not taken; one address has at
	// most half of each. Default 256 MiB.
	MaxInflight int64
	// MaxReaders is how many pages of records and conflicts are read at a time, and
	// how many streams are followed. Default 64.
	MaxReaders int

	// Secret hashes idempotency keys, the same in all regions; default
	// event.DefaultIdempotencySecret.
	Secret []byte
	// WriteTimeout bounds the wait for a write's answer; after it the outcome is
	// unknown. Default 30 s.
	WriteTimeout time.Duration
	// Drain bounds how long Run lets requests finish once it is told to end.
	// Default 30 s.
	Drain time.Duration
	// Heartbeat is the interval between heartbeats on a followed stream. Default 15 s.
	Heartbeat time.Duration
}

// ListenerConfig configures one of the listeners.
type ListenerConfig struct {
	Listen string // a loopback host:port
	// AllowedHosts are the names in the Host header that are answered, beside
	// localhost, loopback addresses and the host of Listen: those under which a
	// proxy forwards.
	AllowedHosts []string
	// MaxConnections bounds the connections that are open at a time; one address
	// has at most half of them. Default 2048 for data, 64 for management.
	MaxConnections int
}

// What MaxConnections is by default.
const (
	dataConnections       = 2048
	managementConnections = 64
)

// Deps are the parts of the instance that a Server talks to.
type Deps struct {
	Topics Topics
	Seats  Seats
	Logs   Logs
	// Incidents shows what was deleted before it was read; nil: there are none.
	Incidents Incidents
	// Forgetter forgets deleted topics; nil: nobody does.
	Forgetter Forgetter
	// Ownership says who may write; nil: this region may write everything.
	Ownership Ownership
	Status    StatusSource
	Probes    []Probe
	// Started is closed when the instance takes writes, or is known not to: writes that
	// come before wait a moment. Nil: it has started.
	Started <-chan struct{}
	// Kafka are the options with which the region's cluster is reached: seeds,
	// security, logger. The server adds its own options for reading.
	Kafka []kgo.Opt
	// Decoder opens batches; nil: one with default limits.
	Decoder *txn.Decoder
	// Configz is the configuration in force, for people to read, without secrets.
	Configz []byte
	// Skipped remembers records of internal topics that cannot be shown; nil: nobody does.
	Skipped *warning.Skipped

	Logger   *slog.Logger
	Registry interface {
		prometheus.Registerer
		prometheus.Gatherer
	}
}

func (c Config) withDefaults() Config {
	const mib = 1 << 20
	c.MaxBody = cmp.Or(c.MaxBody, 32*mib)
	c.MaxRecord = cmp.Or(c.MaxRecord, mib)
	c.MaxInflight = cmp.Or(c.MaxInflight, 256*mib)
	c.MaxReaders = cmp.Or(c.MaxReaders, 64)
	c.Data.MaxConnections = cmp.Or(c.Data.MaxConnections, dataConnections)
	c.Manage.MaxConnections = cmp.Or(c.Manage.MaxConnections, managementConnections)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 30*time.Second)
	c.Drain = cmp.Or(c.Drain, 30*time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	if len(c.Secret) == 0 {
		c.Secret = []byte(event.DefaultIdempotencySecret)
	}
	return c
}

// noAuthentication is why both listeners accept loopback addresses only.
const noAuthentication = "there is no authentication yet"

// Validate checks a Config; zero members count as their defaults.
func (c Config) Validate() error {
	c = c.withDefaults()
	if c.Topology == nil || c.Topology.Name(c.Region) == "" {
		return fmt.Errorf("region %d is not in the topology", c.Region)
	}
	for _, l := range []ListenerConfig{c.Data, c.Manage} {
		if err := l.validate(); err != nil {
			return err
		}
	}
	if c.MaxRecord <= 0 || c.MaxRecord > c.MaxBody || c.MaxBody > MaxShare(c.MaxInflight) {
		return fmt.Errorf("http limits max_record %d, max_body %d, max_inflight %d: want 0 < max_record <= max_body <= half of max_inflight", c.MaxRecord, c.MaxBody, c.MaxInflight)
	}
	if c.MaxReaders < 1 {
		return errors.New("max readers is less than 1")
	}
	return nil
}

// validate refuses an address that other machines can reach, and what is no host.
func (l ListenerConfig) validate() error {
	if err := loopback.Check(l.Listen, noAuthentication); err != nil {
		return fmt.Errorf("listen address: %w", err)
	}
	if l.MaxConnections < 0 {
		return errors.New("max connections is less than 1")
	}
	for _, name := range l.AllowedHosts {
		if !IsHost(name) {
			return fmt.Errorf("allowed host %q: want a host name or address, without scheme and port", name)
		}
	}
	return nil
}
