package gateway

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/geogate/geogate/internal/seat"
)

// barriers reads the barriers of a local partition between two offsets. There must
// be a record at to or after it.
func (s *Server) barriers(ctx context.Context, t Topic, p int32, from, to int64) ([]int64, error) {
	rd, err := s.logs.read(t.Name, false, map[int32]int64{p: from})
	if err != nil {
		return nil, err
	}
	defer rd.close()
	var found []int64
	for {
		rec, err := rd.poll(ctx)
		if err != nil {
			return nil, fmt.Errorf("search for barriers: %w", err)
		}
		if rec.Next() > to {
			return found, nil
		}
		if !rec.Control || !seat.Asks(rec.Key) {
			continue
		}
		barrier, err := s.deps.Logs.IsBarrier(ctx, t.ID, p, rec.Producer, rec.ProducerEpoch)
		if err != nil {
			return nil, err
		}
		if barrier {
			found = append(found, rec.Offset)
		}
	}
}

// barrierCache remembers which stretches of local logs were searched for barriers
// and what was found, so that a reader that begins inside a log needs not search
// the same stretch again. Barriers are few (one for each process and partition);
// one stretch for each partition is kept, the last one used.
type barrierCache struct {
	mu   sync.Mutex
	logs map[logKey]*stretch
}

type logKey struct {
	topic     [16]byte
	partition int32
}

// stretch is a searched part of a log: the offsets from from (inclusive) up to to (exclusive).
type stretch struct {
	from, to int64
	barriers []int64 // ascending
}

// add tells what was found between two offsets.
func (b *barrierCache) add(k logKey, from, to int64, barriers []int64) {
	if from >= to {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.logs == nil {
		b.logs = make(map[logKey]*stretch)
	}
	s := b.logs[k]
	if s == nil || from > s.to || to < s.from {
		b.logs[k] = &stretch{from, to, slices.Clone(barriers)}
		return
	}
	s.from, s.to = min(s.from, from), max(s.to, to)
	s.barriers = append(s.barriers, barriers...)
	slices.Sort(s.barriers)
	s.barriers = slices.Compact(s.barriers)
}

// last is the last barrier below to; known is false unless everything from from
// on was searched. A log's beginning is as good as any from.
func (b *barrierCache) last(k logKey, from, to int64) (barrier int64, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.logs[k]
	if s == nil || s.from > from || s.to < to {
		return seat.NoBarrier, false
	}
	i, _ := slices.BinarySearch(s.barriers, to)
	if i == 0 {
		return seat.NoBarrier, true
	}
	return s.barriers[i-1], true
}
