//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/testbench/client"
)

// idle measures what a region costs that nobody uses: what grows in its Kafka's
// directory, its log ends, and its CPU time.
func (r *run) idle(ctx context.Context) error {
	w, o := r.w, r.w.o
	f := r.figure(fmt.Sprintf("idle, %d seats", o.partitions))
	// Most seats have had a write, so that few rest because they were never used.
	k := newKeys()
	for i := range 4 * min(o.partitions, 250) {
		wr := client.Write{Topic: entityTopic, Key: fmt.Sprintf("idle-%d", i), Value: []byte(`{"idle":true}`), Idem: fmt.Sprintf("idle-%x", k.next())}
		if _, err := w.us.client.Store(ctx, wr); err != nil {
			return err
		}
	}
	if err := sleep.For(ctx, o.settle); err != nil {
		return err
	}
	profiled := w.profile(ctx, f, min(o.idle, time.Minute))
	before, began := w.cost(), time.Now()
	from, err := w.us.ends(ctx)
	if err != nil {
		return err
	}
	bytes, err := w.us.growth(ctx, w.kafkaDir(w.us), o.idle)
	if err != nil {
		return err
	}
	took := time.Since(began)
	to, err := w.us.ends(ctx)
	if err != nil {
		return err
	}
	c := w.cost().since(before)
	if err := profiled(); err != nil {
		return err
	}
	day := float64(24*time.Hour) / float64(took)
	f.Seconds, f.BytesDay, f.CPUPercent = took.Seconds(), float64(bytes)*day, 100*c.Gateway.Seconds()/took.Seconds()
	f = f.peaked(residentOf(w.us.pid()))
	f.By = map[string]float64{}
	for topic, n := range to {
		grown := float64(n-from[topic]) / took.Seconds()
		if topic == "__transaction_state" {
			f.TxnRecords = grown
		} else if grown > 0 {
			f.By["records/s of "+shorter(topic)] += grown
		}
	}
	if b := (c.Broker).Seconds() / took.Seconds(); b > 0 {
		f.By["CPU % of the broker"] = 100 * b
	}
	return r.rep.add(f)
}

// shorter drops what tells topics of one kind apart.
func shorter(topic string) string {
	return strings.ReplaceAll(topic, entityTopic, "<topic>")
}

// ends is the sum of the ends of each topic's logs.
func (r *region) ends(ctx context.Context) (map[string]int64, error) {
	c, err := r.kafka()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	adm := kadm.NewClient(c)
	topics, err := adm.ListTopicsWithInternal(ctx)
	if err != nil {
		return nil, err
	}
	ends, err := adm.ListEndOffsets(ctx, topics.Names()...)
	if err := errors.Join(err, ends.Error()); err != nil {
		return nil, err
	}
	out := map[string]int64{}
	ends.Each(func(o kadm.ListedOffset) { out[o.Topic] += o.Offset })
	return out, nil
}

// growth adds up, second by second, what the log files of a Kafka grow by. What is
// deleted or rewritten shorter meanwhile takes nothing away.
func (r *region) growth(ctx context.Context, dir string, during time.Duration) (grown int64, err error) {
	sizes, err := sizesOf(dir)
	if err != nil {
		return 0, err
	}
	for end := time.Now().Add(during); time.Now().Before(end); {
		if err := sleep.For(ctx, time.Second); err != nil {
			return 0, err
		}
		now, err := sizesOf(dir)
		if err != nil {
			return 0, err
		}
		for file, size := range now {
			grown += max(0, size-sizes[file])
		}
		sizes = now
	}
	return grown, nil
}

// sizesOf gives the sizes of the files that hold records.
func sizesOf(dir string) (map[string]int64, error) {
	out := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !holdsRecords(path) {
			if errors.Is(err, fs.ErrNotExist) { // deleted since the directory was listed
				err = nil
			}
			return err
		}
		if info, err := d.Info(); err == nil {
			out[path] = info.Size()
		}
		return nil
	})
	return out, err
}

// holdsRecords tells logs from indexes, which brokers make large beforehand. An embedded
// Kafka has its files beside those of the gateway's store and of the register.
func holdsRecords(path string) bool {
	return !strings.Contains(path, "/store/") && !strings.Contains(path, "/nats/") && !strings.Contains(path, "/__cluster_metadata") &&
		(strings.HasSuffix(path, ".log") || strings.Contains(path, "/kafka/") && !strings.HasSuffix(path, "index"))
}
