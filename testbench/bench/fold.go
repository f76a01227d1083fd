//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/client"
)

// produceNative fills a topic past the gateway with n events, before it is folded.
func (w *world) produceNative(ctx context.Context, topic string, n int64) error {
	if err := w.us.create(ctx, topic, partitions); err != nil {
		return err
	}
	if _, _, err := w.produce(ctx, topic, func(have int64, _ time.Duration) bool { return have < n }, true); err != nil {
		return err
	}
	return w.linked(ctx) // what the link costs is another bench's
}

// fold has the gateway fold n native events, by reading the merged topic first, and
// returns how long the fold took from its first to its last record.
func (w *world) fold(ctx context.Context, topic string, n int64) (time.Duration, error) {
	first := make(chan error, 1)
	go func() { // the answer waits for the fold, longer than one request may
		first <- client.Poll(ctx, 100*time.Millisecond, func() error {
			_, err := w.us.client.Page(ctx, topic, "merged", "earliest", 1)
			return err
		})
	}()
	var began time.Time
	every := time.NewTicker(20 * time.Millisecond)
	defer every.Stop()
	for {
		done, err := w.us.metric(ctx, "geogate_fold_merged_records_total", fmt.Sprintf("topic=%q", topic))
		now := time.Now()
		if err == nil {
			if began.IsZero() && done > 0 {
				began = now
			}
			if int64(done) > n {
				return 0, fmt.Errorf("%d events are %d records of the merged topic", n, int64(done))
			}
			if int64(done) == n {
				return now.Sub(began), <-first
			}
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for the fold: %w", errors.Join(ctx.Err(), err))
		case <-every.C:
		}
	}
}

// readMerged reads n records of the merged topic as a followed stream.
func (w *world) readMerged(ctx context.Context, n int64) (time.Duration, error) {
	c, done, err := dial(ctx, w.us.data)
	if err != nil {
		return 0, err
	}
	defer done()
	began := time.Now()
	if _, err := fmt.Fprintf(c, "GET /v1/topics/%s/records?view=merged&follow=true&from=earliest HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n", nativeTopic); err != nil {
		return 0, err
	}
	b, err := c.success()
	if err != nil {
		return 0, fmt.Errorf("read the merged topic: %w", err)
	}
	buf, lines := make([]byte, 256<<10), int64(0)
	for lines < n {
		got, err := b.Read(buf)
		lines += int64(bytes.Count(buf[:got], []byte{'\n'}) - bytes.Count(buf[:got], []byte(`{"heartbeat"`)))
		if err != nil {
			return 0, fmt.Errorf("after %d lines: %w", lines, err)
		}
	}
	return time.Since(began), nil
}

// stored compares what the entity topic's log has with what was answered: each write
// once, whatever was sent again.
func (r *run) stored(ctx context.Context) error {
	n := int64(0)
	if err := r.w.us.each(ctx, entityTopic, func(*kgo.Record) { n++ }); err != nil {
		return err
	}
	if n != r.w.written {
		return fmt.Errorf("%d writes were answered, and the log has %d records", r.w.written, n)
	}
	return nil
}

// each shows the committed records of a topic up to where it ends now, and keeps none
// of them.
func (r *region) each(ctx context.Context, topic string, show func(*kgo.Record)) error {
	return r.scan(ctx, topic, kgo.ReadCommitted(), func(rec *kgo.Record) {
		if !rec.Attrs.IsControl() {
			show(rec)
		}
	})
}

// scan shows the records of a topic up to where it ends now, control records included.
func (r *region) scan(ctx context.Context, topic string, level kgo.IsolationLevel, show func(*kgo.Record)) error {
	c, err := r.kafka(kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(), kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return err
	}
	defer c.Close()
	ends, err := kadm.NewClient(c).ListCommittedOffsets(ctx, topic)
	if err := errors.Join(err, ends.Error()); err != nil {
		return fmt.Errorf("list ends of %s: %w", topic, err)
	}
	from, open := map[int32]kgo.Offset{}, map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			from[end.Partition], open[end.Partition] = kgo.NewOffset().AtStart(), end.Offset
		}
	})
	c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	for len(open) > 0 {
		fetches := c.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err()); err != nil {
			return fmt.Errorf("read %s: %w", topic, err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			end := open[rec.Partition]
			if rec.Offset >= end {
				return
			}
			show(rec)
			if rec.Offset+1 == end {
				delete(open, rec.Partition)
			}
		})
	}
	return nil
}
