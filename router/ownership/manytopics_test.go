package ownership_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/mirror"
	"github.com/geogate/geogate/router/ownership/register"
	"github.com/geogate/geogate/testbench/rounds"
)

// manyLogs are the logs of a unit with so many topics that where they end is longer than
// any message that the register takes.
type manyLogs struct{ extents []ownership.Extent }

func newManyLogs(topics, partitions int) manyLogs {
	l := manyLogs{}
	for i := range topics {
		e := ownership.Extent{Topic: fmt.Sprintf("a-topic-with-an-ordinary-name-%05d", i), Offsets: make([]int64, partitions)}
		for p := range e.Offsets {
			e.Offsets[p] = 1_000_000_000 + int64(i+p)
		}
		l.extents = append(l.extents, e)
	}
	return l
}

func (l manyLogs) Ends(context.Context, string) ([]ownership.Extent, error) { return l.extents, nil }
func (l manyLogs) Settle(context.Context, string) error                     { return nil }
func (l manyLogs) Applied(context.Context, string, string) ([]ownership.Extent, error) {
	return l.extents, nil
}

func (l manyLogs) Judged(context.Context, string) ([]ownership.JudgedLog, error) { return nil, nil }

func (l manyLogs) CaughtUp(context.Context) (string, error) { return "", nil }

// TestManyTopics fences a region of ten thousand topics and lets it claim its unit again,
// and starts an instance that has seen nothing of it: the record of the unit would
// be longer than a register takes at the first of these.
func TestManyTopics(t *testing.T) {
	t.Parallel()
	const topics, partitions, unit = 10_000, 6, "default/eu"
	fences := rounds.Of(1, 2)
	nats := startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: t.TempDir()})
	cfg := register.Config{Dialer: nats.Dialer(), Replicas: 1}
	us, eu := newSite(t, "us", 1), newSite(t, "eu", 2)
	us.lease, eu.lease = shortLease(), shortLease()
	us.logs, eu.logs = newManyLogs(topics, partitions), newManyLogs(topics, partitions)
	a, _ := us.start(cfg)
	b, stop := eu.start(cfg)
	until(t, time.Minute, "grant of both", func() bool { return granted(a, "default/us")() && granted(b, unit)() })

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for range fences {
		if r := ask(ctx, a, ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "test"}); r.Code != ownership.ResultDone {
			t.Fatalf("fence: %+v", r)
		}
		if r := ask(ctx, a, ownership.Command{Verb: ownership.VerbUnfence, Region: "eu", Reason: "test"}); r.Code != ownership.ResultDone {
			t.Fatalf("unfence: %+v", r)
		}
		until(t, 2*time.Minute, "claim of eu's unit", granted(b, unit))
	}
	stop()
	again, _ := eu.start(cfg)
	until(t, 2*time.Minute, "grant of a process that starts", granted(again, unit))
	for name, c := range map[string]*ownership.Client{"us": a, "eu": again} {
		u := c.Tokens().Units[unit]
		until(t, time.Minute, "all that the record names, at "+name, func() bool {
			u = c.Tokens().Units[unit]
			return len(u.Record.Epochs) == fences+1 && u.Record.Resolved()
		})
		for _, e := range u.Record.Epochs[:fences] {
			if at, ok := ownership.Offset(e.Cut, "a-topic-with-an-ordinary-name-09999", 0, 5); !ok || at != 1_000_010_004 {
				t.Errorf("%s: the cut of epoch %d is %d, %t", name, e.Epoch, at, ok)
			}
		}
	}
	memory, err := us.memory()
	if err != nil || memory.Units[unit].Epoch == 0 {
		t.Fatalf("the copy in kafka: %v", err)
	}
	copied, err := ownership.DecodeUnit(memory.Units[unit].Data)
	if err != nil {
		t.Fatal(err)
	}
	memory.Extents.Resolve(&copied)
	if !copied.Resolved() || len(memory.Units[unit].Data) > 64<<10 {
		t.Errorf("the copy in kafka has a record of %d bytes, and all that it names: %t", len(memory.Units[unit].Data), copied.Resolved())
	}
}

// memory is what a region's Kafka has of the register.
func (s *site) memory() (ownership.Memory, error) {
	cl := s.client()
	return mirror.New(mirror.Config{Region: s.region, Client: cl, Topics: txn.NewTopics(cl), Logger: slog.New(slog.DiscardHandler)}).Load(s.t.Context())
}
