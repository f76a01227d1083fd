package gateway

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// budget bounds the bytes of request bodies that all requests hold in memory
// together (Config.MaxInflight). It is asked before anything is read.
type budget struct {
	most int64
	free *semaphore.Weighted
	held atomic.Int64 // for the metric
}

func newBudget(most int64) *budget {
	return &budget{most: most, free: semaphore.NewWeighted(most)}
}

// take takes n bytes if they are free.
func (b *budget) take(n int64) bool {
	ok := b.free.TryAcquire(n)
	if ok {
		b.held.Add(n)
	}
	return ok
}

// await takes n bytes, and waits for them until ctx is done, whose error it
// returns.
func (b *budget) await(ctx context.Context, n int64) error {
	if err := b.free.Acquire(ctx, n); err != nil {
		return err
	}
	b.held.Add(n)
	return nil
}

// give gives n bytes back.
func (b *budget) give(n int64) {
	b.free.Release(n)
	b.held.Add(-n)
}

// exhausted is the problem of a request, or a line, for which nothing is free.
func (b *budget) exhausted() *problem {
	return newProblem(codeOverloaded, "in-flight request bodies already use the %d-byte budget (http.max_inflight); retry", b.most)
}
