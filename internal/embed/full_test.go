//go:build linux

package embed_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/embed"
)

// findFile is the directory of the one file below dir whose path ends so.
func findFile(t *testing.T, dir, end string) string {
	t.Helper()
	found := ""
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, end) {
			found = path
		}
		return err
	})
	if err != nil || found == "" {
		t.Fatalf("no %s below %s: %v", end, dir, err)
	}
	return filepath.Dir(found)
}

// TestFullDisk: a broker that cannot write says so, acknowledges nothing from then on,
// in no partition, and makes everything whole when it starts again with room.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	s, err := embed.StartKafka(embed.Kafka{Listen: "127.0.0.1:0", DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	cl := client(t, s.Seeds()[0], kgo.RecordDeliveryTimeout(time.Second), kgo.DisableIdempotentWrite(), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if _, err := kadm.NewClient(cl).CreateTopic(testContext(t), 2, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	put := func(p int32, value string) error {
		return cl.ProduceSync(testContext(t), &kgo.Record{Topic: "t", Partition: p, Value: []byte(value)}).FirstErr()
	}
	if err := put(0, "before"); err != nil {
		t.Fatal(err)
	}
	running := make(chan error, 1)
	go func() { running <- s.Run(context.Background()) }()
	select {
	case err := <-running:
		t.Fatalf("Run returns while the disk has room: %v", err)
	default:
	}
	first := findFile(t, dir, "0.dat") // of partition 0; that of partition 1 will be full
	second := strings.TrimSuffix(first, "0") + "1"
	if err := os.MkdirAll(second, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", filepath.Join(second, "0.dat")); err != nil {
		t.Fatal(err)
	}
	if err := put(1, "lost"); err == nil {
		t.Error("a record that is not on disk is acknowledged")
	}
	select {
	case err := <-running:
		if !errors.Is(err, embed.ErrCannotWrite) || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("Run returns %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Run does not end")
	}
	if err := put(0, "after"); err == nil {
		t.Error("a broker that could not write acknowledges a record")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(second, "0.dat")); err != nil {
		t.Fatal(err)
	}
	again := start(t, dir)
	cl2 := client(t, again.Seeds()[0])
	if err := cl2.ProduceSync(testContext(t), &kgo.Record{Topic: "t", Partition: 1, Value: []byte("again")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ends, err := kadm.NewClient(cl2).ListEndOffsets(testContext(t), "t")
	if err != nil {
		t.Fatal(err)
	}
	for p, least := range map[int32]int64{0: 1, 1: 1} {
		if end, ok := ends.Lookup("t", p); !ok || end.Offset < least || p == 1 && end.Offset != 1 {
			t.Errorf("partition %d ends at %d", p, end.Offset)
		}
	}
}
