package seats

import (
	"context"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/router/ownership"
)

// judgeEvery is the time between two looks at what the region has judged of its own logs.
const judgeEvery = 10 * time.Second

// tellJudged tells the other instances of the region how the own logs of the seats that run
// here were judged, once several epochs have ended in them: the owner of the unit joins
// these then.
func (s *Seats) tellJudged(ctx context.Context) {
	sleep.Every(ctx, judgeEvery, func() {
		for _, h := range s.list() {
			if err := s.tellJudgedOf(ctx, h); err != nil && ctx.Err() == nil {
				s.cfg.Logger.Warn("cannot tell how a log was judged; will try again", "topic", h.Topic, "partition", h.Partition, "err", err)
			}
		}
	})
}

// leastEnded is how many epochs have to have ended before there is something to join.
const leastEnded = 2

func (s *Seats) tellJudgedOf(ctx context.Context, h *runningSeat) error {
	table := s.tables.Table(h.Topic, h.Partition)
	if table == nil || s.isHeld(h.TopicPartition) {
		return nil
	}
	ended := 0
	for i := range table.Logs[s.cfg.ID].List {
		if table.Logs[s.cfg.ID].List[i].Ended {
			ended++
		}
	}
	if ended < leastEnded {
		return nil
	}
	from, to, err := h.view.Judged()
	if err != nil || to == (event.Point{}) {
		return err
	}
	x := control.Judged{ID: h.id, Partition: h.Partition, Topic: h.Topic, From: from, To: to}
	if known, ok := s.cfg.Control.Judged(h.Topic, h.id, h.Partition); ok && known == x {
		return nil
	}
	// A broker that does not answer must not keep the other partitions waiting.
	ctx, cancel := context.WithTimeout(ctx, judgeEvery)
	defer cancel()
	// It was so when it was found out, and stays so, whoever has the seat when it is stored.
	return s.cfg.Control.WriteJudged(ctx, s.cfg.Client, x)
}

// Judged implements ownership.UnitLogs.
func (s *Seats) Judged(ctx context.Context, unit string) (out []ownership.JudgedLog, err error) {
	topics, err := s.topicsOf(ctx, unit)
	if err != nil {
		return nil, err
	}
	for _, t := range topics {
		for p := range t.LocalPartitions() {
			x, ok := s.cfg.Control.Judged(t.Name, t.ID, p)
			if !ok {
				x = control.Judged{} // nothing of it is known
			}
			out = append(out, ownership.JudgedLog{Topic: t.Name, Partition: p, From: x.From, To: x.To})
		}
	}
	return out, nil
}
