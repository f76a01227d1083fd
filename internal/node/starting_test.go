package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router/ownership"
)

// startAfter is a phase that is done some time after the start.
func startAfter(name string, d time.Duration) startPhase {
	began := time.Now()
	return startPhase{name, func(context.Context) error {
		if time.Since(began) < d {
			return errors.New("waits for " + name)
		}
		return nil
	}}
}

func isOver(s *starting) bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

func TestStartSaysWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newStarting(slog.New(slog.NewTextHandler(&log, nil)), startAfter("control", time.Second), startAfter("seats", 13*time.Second))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		<-time.After(5 * time.Second)
		var list warning.List
		if s.Warnings(&list); isOver(s) || list.Count()[warning.Starting] != 1 {
			t.Errorf("over %v, warnings %v after 5 s", isOver(s), list.Count())
		}
		<-time.After(10 * time.Second)
		list = warning.List{}
		if s.Warnings(&list); !isOver(s) || len(list.Count()) != 0 {
			t.Errorf("over %v, warnings %v after 15 s", isOver(s), list.Count())
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for text, times := range map[string]int{"waits_for=control": 1, "waits_for=seats": 2, "msg=started": 1, "the start takes long": 1} {
			if n := strings.Count(log.String(), text); n != times {
				t.Errorf("the log says %q %d times, want %d:\n%s", text, n, times, &log)
			}
		}
	})
}

// Nobody waits for a region that may not write, nor for ever.
func TestStartLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		fenced := newStarting(log, startPhase{"writes", func(context.Context) error { return &ownership.NotOwnerError{Unit: "air/us"} }})
		slow := newStarting(log, startAfter("seats", time.Hour))
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = fenced.Run(ctx) }()
		go func() { _ = slow.Run(ctx) }()
		synctest.Wait()
		if !isOver(fenced) || isOver(slow) {
			t.Errorf("at once: over %v and %v", isOver(fenced), isOver(slow))
		}
		<-time.After(startHoldWrites + 2*startLookSlowly)
		var list warning.List
		if slow.Warnings(&list); !isOver(slow) || list.Count()[warning.Starting] != 1 {
			t.Errorf("after %s: over %v, warnings %v", startHoldWrites, isOver(slow), list.Count())
		}
		stop()
		synctest.Wait()
	})
}
