//go:build unix

package apache_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/apache"
)

func start(t *testing.T, cfg apache.Config) *apache.Broker {
	t.Helper()
	apache.Require(t)
	cfg.Dir = t.TempDir()
	b, err := apache.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Stop() })
	return b
}

func produce(ctx context.Context, b *apache.Broker, value string) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds()...), kgo.RecordDeliveryTimeout(20*time.Second))
	if err != nil {
		return err
	}
	defer c.Close()
	return c.ProduceSync(ctx, &kgo.Record{Topic: "t", Value: []byte(value)}).FirstErr()
}

func end(t *testing.T, b *apache.Broker) int64 {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds()...))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ends, err := kadm.NewClient(c).ListEndOffsets(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	o, _ := ends.Lookup("t", 0)
	return o.Offset
}

// TestApacheBrokerLife walks one broker through everything a test may do to it.
func TestApacheBrokerLife(t *testing.T) {
	for _, version := range []string{apache.Default, apache.Older} {
		t.Run(version, func(t *testing.T) {
			b := start(t, apache.Config{Version: version, HeapMB: 512})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			c, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds()...))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := kadm.NewClient(c).CreateTopic(ctx, 1, 1, nil, "t"); err != nil {
				t.Fatal(err)
			}
			meta, err := kadm.NewClient(c).BrokerMetadata(ctx)
			if err != nil || meta.Cluster != b.ClusterID() {
				t.Fatalf("cluster %q, want %q: %v", meta.Cluster, b.ClusterID(), err)
			}
			if err := produce(ctx, b, "one"); err != nil {
				t.Fatal(err)
			}
			seeds, pid := b.Seeds()[0], b.Pid()

			if err := b.Pause(); err != nil {
				t.Fatal(err)
			}
			short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
			err = produce(short, b, "two")
			stop()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("produce to a paused broker: %v", err)
			}
			if err := b.Resume(); err != nil {
				t.Fatal(err)
			}
			if err := produce(ctx, b, "three"); err != nil {
				t.Fatal(err)
			}

			before := end(t, b)
			if err := b.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Fatalf("process %d after kill: %v", pid, err)
			}
			if err := b.Kill(); !errors.Is(err, apache.ErrNotRunning) {
				t.Fatalf("second kill: %v", err)
			}
			if err := b.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			if got := end(t, b); got < before || b.Seeds()[0] != seeds {
				t.Fatalf("after restart end %d at %s, before %d at %s", got, b.Seeds()[0], before, seeds)
			}
			if err := b.Restart(ctx); err != nil { // while running: stops first
				t.Fatal(err)
			}
			if err := b.Stop(); err != nil {
				t.Fatal(err)
			}
			if log, err := os.ReadFile(b.LogFile()); err != nil || !strings.Contains(string(log), "Kafka Server started") {
				t.Fatalf("broker log has no start line: %v", err)
			}
		})
	}
}

// TestApacheEndsWithItsParent kills a process that owns a broker.
func TestApacheEndsWithItsParent(t *testing.T) {
	apache.Require(t)
	if dir := os.Getenv("GEOGATE_APACHE_CHILD"); dir != "" {
		b, err := apache.Start(t.Context(), apache.Config{Dir: dir, HeapMB: 512})
		if err != nil {
			t.Fatal(err)
		}
		tmp := filepath.Join(dir, "pid.tmp")
		if err := os.WriteFile(tmp, fmt.Append(nil, b.Pid()), 0o600); err != nil {
			t.Fatal(err)
		}
		os.Rename(tmp, filepath.Join(dir, "pid"))
		select {}
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestApacheEndsWithItsParent$")
	cmd.Env = append(os.Environ(), "GEOGATE_APACHE_CHILD="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	eventually(t, "the child's broker to start", func() bool {
		raw, err := os.ReadFile(filepath.Join(dir, "pid"))
		if err != nil {
			return false
		}
		_, err = fmt.Sscan(string(raw), &pid)
		return err == nil
	})
	cmd.Process.Kill()
	cmd.Wait()
	eventually(t, "the broker to end with its parent", func() bool {
		// A zombie waits for its new parent; it holds nothing any more.
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(raw), ") Z ")
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("waited a minute for %s", what)
		case <-tick.C:
		}
	}
}

func TestApacheStartSaysWhy(t *testing.T) {
	apache.Require(t)
	_, err := apache.Start(t.Context(), apache.Config{
		Dir: t.TempDir(), HeapMB: 512,
		Properties: map[string]string{"num.io.threads": "none"},
	})
	if err == nil || !strings.Contains(err.Error(), "num.io.threads") {
		t.Fatalf("start with a bad property: %v", err)
	}
}

func TestResolveRefusesOddVersions(t *testing.T) {
	for _, v := range []string{"", "4", "4.3.1</version>", "../x"} {
		if _, err := apache.Resolve(t.Context(), v); err == nil {
			t.Errorf("resolved %q", v)
		}
	}
}

func TestResolveUsesAndRepairsTheCache(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GEOGATE_APACHE_CACHE", dir)
	t.Setenv("PATH", t.TempDir()) // no Maven
	jar := filepath.Join(dir, "a.jar")
	file := filepath.Join(dir, "4.3.1", "classpath")
	os.MkdirAll(filepath.Dir(file), 0o755)
	os.WriteFile(file, []byte(jar), 0o644)
	if _, err := apache.Resolve(t.Context(), "4.3.1"); err == nil || !strings.Contains(err.Error(), "maven") {
		t.Fatalf("a class path whose files are gone must be resolved again: %v", err)
	}
	os.WriteFile(jar, nil, 0o644)
	cp, err := apache.Resolve(t.Context(), "4.3.1")
	if err != nil || string(cp) != jar {
		t.Fatalf("cached class path: %q, %v", cp, err)
	}
}

func TestFreePortIsBelowTheEphemeralRange(t *testing.T) {
	for range 20 {
		p, err := apache.FreePort()
		if err != nil || p >= 32768 || p < 1024 {
			t.Fatalf("port %d, %v", p, err)
		}
	}
}
