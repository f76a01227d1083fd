//go:build unix

package apache

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Config describes one broker that is its own controller.
type Config struct {
	// Version of Kafka; empty means Default.
	Version string
	// Dir holds the configuration, the data and the log (broker.log). It is
	// created when missing, and must not be shared.
	Dir string
	// HeapMB is Java's -Xmx in MiB; 0 means 768.
	HeapMB int
	// Measured lets Java compile and collect as it does in a server. Otherwise it
	// starts with half the CPU time, and is slower under a long load.
	Measured bool
	// Properties are added to, or replace, lines of server.properties.
	Properties map[string]string
	// Listeners are more listeners, with the protocol of each: "MTLS": "SSL". What else they
	// need is in Properties.
	Listeners map[string]string
	// Format has more arguments for the formatting of the storage, such as --add-scram.
	Format []string
	// Java has more arguments for Java.
	Java []string
}

// listeners adds c.Listeners, at ports of their own, to those that properties has.
func (c Config) listeners(p map[string]string, ports map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		address := fmt.Sprintf(",%s://127.0.0.1:%d", name, ports[name])
		p["listeners"] += address
		p["advertised.listeners"] += address
		p["listener.security.protocol.map"] += fmt.Sprintf(",%s:%s", name, c.Listeners[name])
	}
}

func (c Config) withDefaults() Config {
	c.Version = cmp.Or(c.Version, Default)
	c.HeapMB = cmp.Or(c.HeapMB, 768)
	return c
}

// properties returns server.properties for the two ports. Single-replica
// internal topics are what one broker can hold; few partitions and no
// rebalance delay make starts quick.
func (c Config) properties(client, controller int, more map[string]int) string {
	p := map[string]string{
		"process.roles":                    "broker,controller",
		"node.id":                          "1",
		"controller.quorum.voters":         fmt.Sprintf("1@127.0.0.1:%d", controller),
		"listeners":                        fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", client, controller),
		"advertised.listeners":             fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", client),
		"controller.listener.names":        "CONTROLLER",
		"listener.security.protocol.map":   "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs":                         filepath.Join(c.Dir, "data"),
		"auto.create.topics.enable":        "false",
		"offsets.topic.replication.factor": "1",
		"offsets.topic.num.partitions":     "8",
		// Records of tests have times of their own. A broker that lives longer than 30 s
		// would delete them as older than a week.
		"log.retention.ms":                                 "-1",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"transaction.state.log.num.partitions":             "8",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"group.initial.rebalance.delay.ms":                 "0",
	}
	if strings.HasPrefix(c.Version, "3.") {
		delete(p, "share.coordinator.state.topic.replication.factor")
		delete(p, "share.coordinator.state.topic.min.isr")
	}
	c.listeners(p, more)
	for k, v := range c.Properties {
		p[k] = v
	}
	lines := make([]string, 0, len(p))
	for k, v := range p {
		lines = append(lines, k+"="+v+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// logConfig sends warnings and the start-up lines to standard output, which is
// the broker's log file. XML needs no further jar, YAML would.
const logConfig = `<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="warn">
  <Appenders>
    <Console name="out" target="SYSTEM_OUT"><PatternLayout pattern="%d{ISO8601} %p %c{1} %m%n"/></Console>
  </Appenders>
  <Loggers>
    <Logger name="org.apache.kafka.common.config" level="warn"/>
    <Logger name="kafka.server.KafkaConfig" level="warn"/>
    <Root level="info"><AppenderRef ref="out"/></Root>
  </Loggers>
</Configuration>
`

// write lays the configuration files down.
func (c Config) write(client, controller int, more map[string]int) error {
	if c.Dir == "" {
		return errors.New("start kafka: no directory")
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("create broker directory: %w", err)
	}
	for name, text := range map[string]string{
		"server.properties": c.properties(client, controller, more),
		"log4j2.xml":        logConfig,
	} {
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// newClusterID returns a random id in Kafka's form. One that begins with a dash
// would be read as an option by the storage tool.
func newClusterID() string {
	for {
		var raw [16]byte
		rand.Read(raw[:])
		if id := base64.RawURLEncoding.EncodeToString(raw[:]); id[0] != '-' {
			return id
		}
	}
}

// given are the ports that FreePort has given to this process, whose tests run side
// by side and listen later, or again.
var given sync.Map

// FreePort returns a loopback TCP port nobody listens on, and never the same one
// twice. It lies below the ephemeral range, so that no outgoing connection takes it
// between this call and the listen that follows; a listener of another process
// still may, so callers retry.
func FreePort() (int, error) {
	const low, high = 20_000, 32_000
	for range 200 {
		n, err := rand.Int(rand.Reader, big.NewInt(high-low))
		if err != nil {
			return 0, fmt.Errorf("choose port: %w", err)
		}
		port := low + int(n.Int64())
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			ln.Close()
			if _, twice := given.LoadOrStore(port, true); !twice {
				return port, nil
			}
		}
	}
	return 0, errors.New("find a free port: 200 tries found none")
}
