//go:build unix

package apache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/testbench/proc"
)

const (
	// startTries bounds how often other ports are tried after a start failed.
	startTries = 3
	// readyWait bounds one start; 2 to 4 s are usual on an idle machine.
	readyWait = 60 * time.Second
	// stopWait is how long an orderly stop may take before a kill.
	stopWait = 15 * time.Second
)

// ErrNotRunning is returned for a broker that has been stopped or killed.
var ErrNotRunning = errors.New("apache: broker is not running")

// Broker is a one-broker cluster. Its methods may be called from several
// goroutines; Stop, Kill and Restart exclude each other.
type Broker struct {
	cfg       Config
	classPath ClassPath
	clusterID string
	port      int
	ports     map[string]int // of Config.Listeners

	change sync.Mutex // one start, stop or kill at a time
	mu     sync.Mutex
	proc   *proc.Process // nil while down
}

// Start formats the storage of a new directory and starts a broker on it. It
// returns when the broker answers ApiVersions and Metadata, or an error with
// the end of the broker's log. Inside a test it starts nothing unless
// GEOGATE_TEST_KAFKA=1 is set.
func Start(ctx context.Context, cfg Config) (*Broker, error) {
	if testing.Testing() && !enabled() {
		return nil, errNotAsked
	}
	cfg = cfg.withDefaults()
	cp, err := Resolve(ctx, cfg.Version)
	if err != nil {
		return nil, err
	}
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, fmt.Errorf("find broker directory: %w", err)
	}
	b := &Broker{cfg: cfg, classPath: cp, clusterID: newClusterID()}
	for try := 1; ; try++ {
		err = b.startFresh(ctx)
		if err == nil {
			return b, nil
		}
		// The likely cause of a failed first start is a port that was taken in
		// between: other ports may do.
		if try == startTries || ctx.Err() != nil {
			return nil, err
		}
	}
}

// startFresh chooses ports, formats and starts.
func (b *Broker) startFresh(ctx context.Context) error {
	client, err := FreePort()
	if err != nil {
		return err
	}
	controller, err := FreePort()
	if err != nil {
		return err
	}
	b.ports = make(map[string]int)
	for name := range b.cfg.Listeners {
		if b.ports[name], err = FreePort(); err != nil {
			return err
		}
	}
	if err := b.cfg.write(client, controller, b.ports); err != nil {
		return err
	}
	// What an earlier try left belongs to other ports: the quorum would not
	// form. A new broker has no data to lose.
	if err := os.RemoveAll(filepath.Join(b.cfg.Dir, "data")); err != nil {
		return fmt.Errorf("clear storage: %w", err)
	}
	b.port = client
	format := b.java(ctx, append([]string{"kafka.tools.StorageTool", "format", "-t", b.clusterID, "-c", "server.properties"}, b.cfg.Format...)...)
	if out, err := format.CombinedOutput(); err != nil {
		return fmt.Errorf("format storage: %w: %s", err, tail(out))
	}
	return b.up(ctx)
}

// java prepares a Java process in the broker's directory.
func (b *Broker) java(ctx context.Context, args ...string) *exec.Cmd {
	all := append([]string{
		fmt.Sprintf("-Xmx%dm", b.cfg.HeapMB),
		"-Dlog4j2.configurationFile=" + filepath.Join(b.cfg.Dir, "log4j2.xml"),
		"-Djava.awt.headless=true",
		"-cp", string(b.classPath),
	}, args...)
	all = append(slices.Clone(b.cfg.Java), all...)
	if !b.cfg.Measured {
		// Most of a short life is compiling: one quick compiler, one collector.
		all = append([]string{"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}, all...)
	}
	cmd := exec.CommandContext(ctx, "java", all...)
	cmd.Dir = b.cfg.Dir
	return cmd
}

// up starts the process and waits until it serves.
func (b *Broker) up(ctx context.Context) error {
	logFile, err := os.OpenFile(b.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open broker log: %w", err)
	}
	defer logFile.Close()
	// The broker outlives ctx, which bounds only its start.
	cmd := b.java(context.WithoutCancel(ctx), "kafka.Kafka", "server.properties")
	cmd.Stdout, cmd.Stderr = logFile, logFile
	p, err := proc.Start(cmd)
	if err != nil {
		return fmt.Errorf("start kafka %s: %w", b.cfg.Version, err)
	}
	if err := b.ready(ctx, p); err != nil {
		p.Kill()
		log, _ := os.ReadFile(b.LogFile())
		return fmt.Errorf("start kafka %s on port %d: %w: %s", b.cfg.Version, b.port, err, tail(log))
	}
	b.mu.Lock()
	b.proc = p
	b.mu.Unlock()
	return nil
}

// ready polls until the broker names itself in metadata.
func (b *Broker) ready(ctx context.Context, p *proc.Process) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds()...), kgo.RequestRetries(0), kgo.DialTimeout(time.Second))
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	defer c.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{}
		resp, err := req.RequestWith(ctx, c)
		if err == nil && len(resp.Brokers) == 1 {
			return nil
		}
		select {
		case <-p.Done():
			return errors.New("process ended before it served")
		case <-ctx.Done():
			return fmt.Errorf("wait for metadata: %w", errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

// Seeds returns the broker's address.
func (b *Broker) Seeds() []string { return []string{fmt.Sprintf("127.0.0.1:%d", b.port)} }

// Listener returns the address of one of Config.Listeners.
func (b *Broker) Listener(name string) string { return fmt.Sprintf("127.0.0.1:%d", b.ports[name]) }

// ClusterID returns the id the storage was formatted with.
func (b *Broker) ClusterID() string { return b.clusterID }

// LogFile returns the name of the file with everything the broker printed.
func (b *Broker) LogFile() string { return filepath.Join(b.cfg.Dir, "broker.log") }

// Pid returns the process id, or 0 while the broker is down: for measuring its
// CPU time and memory.
func (b *Broker) Pid() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.proc == nil {
		return 0
	}
	return b.proc.Pid()
}

// take removes the process from b, so that whoever took it ends it alone.
func (b *Broker) take() *proc.Process {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.proc
	b.proc = nil
	return p
}

// Stop ends the broker in order, and kills it if that takes over 15 s. Stopping
// a broker that is down does nothing.
func (b *Broker) Stop() error {
	b.change.Lock()
	defer b.change.Unlock()
	if p := b.take(); p != nil {
		return p.Stop(stopWait)
	}
	return nil
}

// Kill ends the broker without warning, as a crash would.
func (b *Broker) Kill() error {
	b.change.Lock()
	defer b.change.Unlock()
	p := b.take()
	if p == nil {
		return ErrNotRunning
	}
	p.Kill()
	return nil
}

// Pause stops the process with SIGSTOP: connections stay open, nothing is
// answered, and the broker's clock jumps when it goes on.
func (b *Broker) Pause() error { return b.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (b *Broker) Resume() error { return b.signal(syscall.SIGCONT) }

func (b *Broker) signal(s syscall.Signal) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.proc == nil {
		return ErrNotRunning
	}
	return b.proc.Signal(s)
}

// Restart starts the broker again on the same ports and data, after an orderly
// stop if it still runs.
func (b *Broker) Restart(ctx context.Context) error {
	b.change.Lock()
	defer b.change.Unlock()
	if p := b.take(); p != nil {
		if err := p.Stop(stopWait); err != nil {
			return err
		}
	}
	return b.up(ctx)
}
