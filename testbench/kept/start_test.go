package kept_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/kept"
	"github.com/geogate/geogate/testbench/natscluster"
)

const (
	dataDir  = "../data/kept"
	stopWait = 30 * time.Second
	// forever is a window of idempotency that has not passed since the data was
	// written. The file says 24h; the logs keep everything.
	forever = 100 * 365 * 24 * time.Hour
)

// lease are about the shortest times with which a loaded machine renews in time; those
// of the kept configuration are shorter.
var lease = ownership.LeaseConfig{Duration: 13 * time.Second, Margin: 100 * time.Millisecond, Renew: time.Second, Timeout: 1900 * time.Millisecond}

// members are who has a data directory, in the order of starting.
func members() []string { return []string{"witness", "us", "eu"} }

// deployment is the present code on kept data: both regions and the witness in this
// process.
type deployment struct {
	dir     string
	log     *os.File
	regions map[string]*kept.Region
	seeds   map[string][]string
	dialers map[string]embed.NATSDialer
	servers map[string]*node.EmbeddedNATS

	closing []func() error // what to end, in reverse
}

// unpack copies the kept data into a directory of the test.
func unpack(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range members() {
		if err := kept.Unpack(filepath.Join(dataDir, kept.Archive(name)), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// start starts everything on the data below dir, on free ports. The end of the test
// stops it.
func start(t *testing.T, dir string) *deployment {
	t.Helper()
	d := &deployment{
		dir: dir, regions: map[string]*kept.Region{}, seeds: map[string][]string{},
		dialers: map[string]embed.NATSDialer{}, servers: map[string]*node.EmbeddedNATS{},
	}
	var err error
	if d.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.close(t) })
	if err := d.engines(); err != nil {
		t.Fatal(err)
	}
	errs := make([]error, 2)
	var started [2]func() error
	var both sync.WaitGroup
	for i, name := range members()[1:] {
		d.regions[name] = &kept.Region{Name: name, Seeds: d.seeds[name], Client: client.Client{HTTP: client.NewHTTP()}}
		both.Go(func() { started[i], errs[i] = d.instance(name) })
	}
	both.Wait()
	d.closing = append(d.closing, func() error { return atOnce(started[:]) })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return d
}

// atOnce stops what was started, all at the same time.
func atOnce(stops []func() error) error {
	errs := make([]error, len(stops))
	var all sync.WaitGroup
	for i, stop := range stops {
		if stop != nil {
			all.Go(func() { errs[i] = stop() })
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

// engines starts the three servers of the register and both Kafkas.
func (d *deployment) engines() error {
	at := map[string]string{}
	for _, name := range members() {
		port, err := apache.FreePort()
		if err != nil {
			return err
		}
		at[name] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	for _, name := range members() {
		c := &node.EmbeddedNATS{Name: "ctl-" + name, Cluster: at[name], SecretFile: filepath.Join(d.dir, "nats.secret")} // read by no instance here
		for _, other := range members() {
			if other != name {
				c.Routes = append(c.Routes, "nats-route://"+at[other])
			}
		}
		server, err := embed.StartNATS(embed.NATS{Name: c.Name, StoreDir: filepath.Join(d.dir, name, "nats"), ClusterListen: c.Cluster, Routes: c.Routes, Secret: natscluster.Secret()})
		if err != nil {
			return fmt.Errorf("start the register's server of %s on kept streams: %w", name, err)
		}
		d.closing = append(d.closing, server.Close)
		d.dialers[name], d.servers[name] = server.Dialer(), c
	}
	return d.kafkas()
}

// kafkas starts the Kafka of both regions.
func (d *deployment) kafkas() error {
	for _, name := range members()[1:] {
		server, err := embed.StartKafka(embed.Kafka{
			Listen: "127.0.0.1:0", DataDir: filepath.Join(d.dir, name, "kafka"), Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return fmt.Errorf("start kafka of %s on kept logs: %w", name, err)
		}
		d.closing = append(d.closing, server.Close)
		d.seeds[name] = server.Seeds()
	}
	return nil
}

// config is the kept configuration of a region, on other ports.
func (d *deployment) config(name string) (node.Config, error) {
	policies, err := filepath.Abs(dataDir)
	if err != nil {
		return node.Config{}, err
	}
	c := node.Defaults()
	c.Version, c.Region, c.DataDir, c.Drain = 1, name, filepath.Join(d.dir, name), 10*time.Second
	c.HTTP.Listen, c.Management.Listen = "127.0.0.1:0", "127.0.0.1:0"
	// The copy that is kept is everybody's to read; such a file is refused.
	b, err := os.ReadFile(filepath.Join(policies, "secret"))
	if err != nil {
		return node.Config{}, err
	}
	secret := filepath.Join(d.dir, name+".secret")
	if err := os.WriteFile(secret, b, 0o600); err != nil {
		return node.Config{}, err
	}
	c.Idempotency.SecretFile = secret
	c.Policies.Residency, c.Policies.Ownership = filepath.Join(policies, "residency.yaml"), filepath.Join(policies, "ownership.yaml")
	c.Regions = map[string]node.RegionConfig{}
	for i, region := range members()[1:] {
		c.Regions[region] = node.RegionConfig{ID: event.RegionID(i + 1), Kafka: node.KafkaConfig{Seeds: d.seeds[region]}}
	}
	c.Links = []node.LinkConfig{{From: "us", To: "eu"}, {From: "eu", To: "us"}}
	c.NATS = node.NATSConfig{Mode: "quorum", Embedded: d.servers[name], Lease: lease}
	c = c.Complete()
	if err := c.Validate(); err != nil {
		return c, err
	}
	c.Idempotency.Window = forever // more than a file may say
	return c, nil
}

// instance starts the instance of a region and returns what stops it.
func (d *deployment) instance(name string) (stop func() error, err error) {
	c, err := d.config(name)
	if err != nil {
		return nil, fmt.Errorf("configure %s: %w", name, err)
	}
	log := slog.New(slog.NewTextHandler(d.log, nil)).With("region", name)
	n, err := node.New(c, node.Deps{Logger: log, Registry: prometheus.NewRegistry(), NATS: d.dialers[name]})
	if err != nil {
		return nil, fmt.Errorf("assemble %s on kept data: %w", name, err)
	}
	running := node.Start(n.Components()...)
	d.regions[name].Address = client.At("http://"+n.DataAddr(), "http://"+n.ManagementAddr())
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopWait)
		defer cancel()
		return errors.Join(running.Err(), running.Stop(ctx))
	}, nil
}

// close ends everything, and shows the log of a test that failed.
func (d *deployment) close(t *testing.T) {
	for _, r := range d.regions {
		r.HTTP.CloseIdleConnections()
	}
	d.stop(t)
	if t.Failed() {
		if _, err := d.log.Seek(0, io.SeekStart); err == nil {
			raw, _ := io.ReadAll(d.log)
			t.Logf("the deployment's log:\n%s", raw)
		}
	}
	if err := d.log.Close(); err != nil {
		t.Error(err)
	}
}

func (d *deployment) stop(t *testing.T) {
	for i := len(d.closing) - 1; i >= 0; i-- {
		if err := d.closing[i](); err != nil {
			t.Errorf("end the deployment: %v", err)
		}
	}
}

func (d *deployment) region(name string) *kept.Region { return d.regions[name] }

func (d *deployment) all() []*kept.Region { return []*kept.Region{d.regions["us"], d.regions["eu"]} }
