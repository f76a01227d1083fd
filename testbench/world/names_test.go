package world_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// oneName has every instance of us run under one name, as a process that nobody has
// stopped and its successor do.
func oneName(c *node.Config) {
	if c.Region == "us" {
		c.Instance = "us-0"
	}
}

// initProducerID is the request by which an instance takes a seat.
const initProducerID = 22

// leased waits until an instance has written a renewal of its lease.
func leased(t *testing.T, w *world.World, in *world.Instance) {
	t.Helper()
	w.Eventually("the second process to hold a lease", func() error {
		var st gateway.Status
		if err := in.Manage(limit(t), "/v1/status", &st); err != nil {
			return err
		}
		for _, u := range st.Units {
			if u.LeaseSeconds != nil {
				return nil
			}
		}
		return fmt.Errorf("its units: %+v", st.Units)
	})
}

// TestTwoProcessesUnderOneName: the one that started first ends as soon as it hears of
// the other, though nobody has taken its seats, and the other writes on at once.
func TestTwoProcessesUnderOneName(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Register: true, Configure: oneName})
	us, eu := w.Region("us"), w.Region("eu")
	us.AwaitReady()
	before := us.Put(flights, "a", `1`)
	first := us.Instance(0)
	second := w.AddInstance("us")
	w.Eventually("the first process to end", func() error {
		if err := first.Ended(); !errors.Is(err, node.ErrSuperseded) || !errors.Is(err, ownership.ErrNameTaken) {
			return fmt.Errorf("it ended with %v", err)
		}
		return nil
	})
	us.AwaitReady()
	after := us.Put(flights, "a", `2`)
	if e := entity(t, eu, flights, "a", world.Token(after.Token)); e.Version != after.Dot {
		t.Errorf("the entity is %s, %s was written after %s", e.Version, after.Dot, before.Dot)
	}
	if err := second.Ended(); err != nil {
		t.Errorf("the second process ended: %v", err)
	}
}

// TestFenceOfTwoProcessesUnderOneName: a process that is cut off the register goes on
// under its lease, and another one runs under its name. A fence that promises that every
// answered write counts is not answered before the first one's lease has run out.
func TestFenceOfTwoProcessesUnderOneName(t *testing.T) {
	t.Parallel()
	for n := range 3 {
		tried := false
		t.Run(fmt.Sprint(n), func(t *testing.T) { tried = fenceOfTwoProcesses(t) })
		if tried || t.Failed() {
			return
		}
	}
	t.Fatal("the first process answered no write, three times, and so proves nothing")
}

// fenceOfTwoProcesses returns false if the machine was so slow that the first process's
// lease had run out before the fence began.
func fenceOfTwoProcesses(t *testing.T) (tried bool) {
	w := world.Start(t, world.Options{Register: true, Configure: oneName})
	us, eu := w.Region("us"), w.Region("eu")
	us.AwaitReady()
	eu.AwaitReady()
	us.Put(flights, "a", `1`)
	w.Settle()
	first := us.Instance(0)
	first.CutRegister()
	letGo := func() {}
	second := w.AddInstance("us", func(in *world.Instance) { letGo = in.Hold(initProducerID) }) // its seats stay the first one's
	leased(t, w, second)

	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	fenced := make(chan ownership.Result, 1)
	go func() {
		r, err := eu.Fence(ctx, "us", "the old host hangs")
		if err != nil {
			t.Error(err)
		}
		fenced <- r
	}()
	var acked []string // before the fence was answered
	var result ownership.Result
	for result.Detail == "" {
		a, err := first.Try(limit(t), client.Write{Topic: flights, Key: "late", Value: []byte(`2`)})
		switch {
		case err == nil:
			acked = append(acked, a.Dot)
		case len(acked) > 0:
			letGo() // its lease has run out
		}
		select {
		case result = <-fenced:
		case <-time.After(20 * time.Millisecond):
		}
	}
	letGo()
	if len(acked) == 0 {
		return false
	}
	if a, err := first.Try(limit(t), client.Write{Topic: flights, Key: "late", Value: []byte(`3`)}); err == nil {
		t.Errorf("the first process answered %s after the fence ended with exit code %d", a.Dot, result.Code)
	}
	if result.Code == ownership.ResultLoss {
		t.Logf("the second process came too late with the end of its log: %+v", result)
		return true // and nothing was promised of what the first one has answered
	}
	if result.Code != ownership.ResultDone {
		t.Fatalf("the fence ended with %+v", result)
	}
	w.Eventually("every answered write in eu's view of us", func() error {
		page, err := eu.Records(flights, "origin:us")
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, r := range page {
			seen[r.Dot] = true
		}
		for _, dot := range acked {
			if !seen[dot] {
				return fmt.Errorf("%s is missing, one of %d", dot, len(acked))
			}
		}
		return nil
	})
	return true
}
