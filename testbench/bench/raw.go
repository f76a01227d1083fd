//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// raw is what a franz-go producer does on the broker of us, the yardstick of all rates.
func (w *world) raw(ctx context.Context, during time.Duration) (rate float64, err error) {
	if err := w.us.create(ctx, rawTopic, partitions); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.us.remove(context.WithoutCancel(ctx), rawTopic)) }()
	n, took, err := w.produce(ctx, rawTopic, func(n int64, since time.Duration) bool { return since < during }, false)
	return float64(n) / took.Seconds(), err
}

// produce writes records natively to a topic of us as long as more says so.
func (w *world) produce(ctx context.Context, topic string, more func(n int64, since time.Duration) bool, distinct bool) (int64, time.Duration, error) {
	c, err := w.us.kafka(kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(20_000))
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	rng := rand.New(rand.NewPCG(7, 7))
	values := make([][]byte, 4096)
	keys := make([][]byte, len(values))
	for i := range values {
		values[i], keys[i] = value(rng, w.o.size), fmt.Appendf(nil, "key-%d", i)
	}
	var stored atomic.Int64
	var failed atomic.Pointer[error]
	started := time.Now()
	for n := int64(0); more(n, time.Since(started)) && ctx.Err() == nil && failed.Load() == nil; n++ {
		r := &kgo.Record{Topic: topic, Key: keys[n%int64(len(keys))], Value: values[n%int64(len(values))]}
		if distinct {
			r.Key = fmt.Appendf(nil, "key-%d", n)
		}
		c.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store(&err)
				return
			}
			stored.Add(1)
		})
	}
	err = c.Flush(ctx)
	if f := failed.Load(); f != nil {
		err = errors.Join(err, *f)
	}
	return stored.Load(), time.Since(started), err
}

// rawAlone is how long single records of a franz-go producer take, one after the other.
func (w *world) rawAlone(ctx context.Context, n int) (_ []time.Duration, err error) {
	if err := w.us.create(ctx, rawTopic, partitions); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.us.remove(context.WithoutCancel(ctx), rawTopic)) }()
	c, err := w.us.kafka(kgo.ProducerLinger(0), kgo.DefaultProduceTopic(rawTopic))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	val := value(rand.New(rand.NewPCG(8, 8)), w.o.size)
	var took []time.Duration
	for i := range n + n/10 {
		at := time.Now()
		if err := c.ProduceSync(ctx, &kgo.Record{Key: fmt.Appendf(nil, "key-%d", i), Value: val}).FirstErr(); err != nil {
			return nil, err
		}
		if i >= n/10 { // the first ones open connections
			took = append(took, time.Since(at))
		}
	}
	return took, nil
}
