package node_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/node"
)

// said is a log that calls first, once, when a line with the word comes.
type said struct {
	mu    sync.Mutex
	text  bytes.Buffer
	word  string
	first func()
}

func (s *said) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first != nil && bytes.Contains(line, []byte(s.word)) {
		s.first()
		s.first = nil
	}
	return s.text.Write(line)
}

const waiting = "cannot be used yet"

// open makes a node over the Kafka at a port.
func open(t *testing.T, port int, log *said, within time.Duration, change ...func(*node.KafkaConfig)) (*node.Node, error) {
	t.Helper()
	c := node.Defaults()
	c.Version, c.Region, c.DataDir = 1, "us", t.TempDir()
	c.HTTP.Listen, c.Management.Listen = "127.0.0.1:0", "127.0.0.1:0"
	seed := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String()
	kafka := node.KafkaConfig{Seeds: []string{seed}}
	for _, f := range change {
		f(&kafka)
	}
	c.Regions = map[string]node.RegionConfig{"us": {ID: 1, Kafka: kafka}}
	c = c.Complete()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return node.New(c, node.Deps{Logger: slog.New(slog.NewJSONHandler(log, nil)), Registry: prometheus.NewRegistry(), ReachTimeout: within})
}

// freePort is a port on which nothing listens.
func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// A Kafka that starts after the instance is waited for, and that is said once.
func TestKafkaThatStartsLater(t *testing.T) {
	port := freePort(t)
	log := &said{word: waiting, first: func() {
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port))
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(c.Close)
	}}
	n, err := open(t, port, log, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	n.Close()
	if said := strings.Count(log.text.String(), waiting); said != 1 {
		t.Errorf("said %d times:\n%s", said, &log.text)
	}
}

// Without a Kafka the start ends with ErrUnreachable once the time is up.
func TestNoKafka(t *testing.T) {
	log := &said{}
	n, err := open(t, freePort(t), log, 1500*time.Millisecond)
	if err == nil {
		n.Close()
	}
	if !errors.Is(err, node.ErrUnreachable) {
		t.Fatalf("got %v", err)
	}
	if said := strings.Count(log.text.String(), waiting); said != 1 {
		t.Errorf("said %d times:\n%s", said, &log.text)
	}
}

// A Kafka that refuses the password is tried for as long as one that does not answer, since
// it may be starting; then the start is refused, with what to correct.
func TestKafkaThatRefuses(t *testing.T) {
	port := freePort(t)
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "geogate", "right"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	file := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(file, []byte("wrong-secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &said{}
	n, err := open(t, port, log, 1500*time.Millisecond, func(k *node.KafkaConfig) {
		k.SASL = &connect.SASL{Mechanism: connect.Scram256, Username: "geogate", PasswordFile: file}
	})
	if err == nil {
		n.Close()
	}
	if !errors.Is(err, node.ErrRefused) || !strings.Contains(err.Error(), "correct regions.us.kafka.sasl") {
		t.Fatalf("got %v", err)
	}
	if text := err.Error() + log.text.String(); strings.Contains(text, "wrong-secret") {
		t.Errorf("the password was told: %s", text)
	}
	if said := strings.Count(log.text.String(), waiting); said != 1 {
		t.Errorf("said %d times:\n%s", said, &log.text)
	}
}
