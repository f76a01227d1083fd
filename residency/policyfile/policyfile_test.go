package policyfile

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/residency"
)

const borderPolicy = `version: 1
kind: ResidencyPolicy
name: test
revision: %d
default: deny
max_age: 60s
rules:
  - {id: open, effect: allow, topics: [orders], from: [eu], to: ["*"]}
`

// watched runs a follower in a bubble of synctest over a file that read gives, and
// has check called when a time has passed.
func watched(t *testing.T, read func(call int) ([]byte, error), after time.Duration, check func(t *testing.T, g *residency.Guard)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p, err := residency.Parse("p", fmt.Appendf(nil, borderPolicy, 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		f := &Follower{
			path: t.TempDir() + "/p", guard: residency.NewGuard(p), log: slog.New(slog.DiscardHandler),
			readFile: func(string) ([]byte, error) { calls++; return read(calls) },
		}
		end := time.Now().Add(after)
		for time.Now().Before(end) {
			f.look(t.Context())
			if err := sleep.For(t.Context(), time.Second); err != nil {
				t.Fatal(err)
			}
		}
		check(t, f.guard)
		if f.reading != nil {
			<-f.reading
		}
	})
}

func stoppedFor(reason string) func(t *testing.T, g *residency.Guard) {
	return func(t *testing.T, g *residency.Guard) {
		t.Helper()
		if st := g.Status(); st.State != residency.Stopped || st.Err == nil || !strings.Contains(st.Err.Error(), reason) {
			t.Fatalf("%+v, want a stop for %q", st, reason)
		}
		if r := g.Rule("orders", "eu", "us"); r.Effect != residency.Deny {
			t.Fatalf("%+v", r)
		}
	}
}

// However the file fails, egress stops at max_age.
func TestPolicyFileThatFails(t *testing.T) {
	gone := errors.New("gone")
	for name, c := range map[string]struct {
		read   func(call int) ([]byte, error)
		reason string
	}{
		"gone":  {func(int) ([]byte, error) { return nil, gone }, "gone"},
		"empty": {func(int) ([]byte, error) { return []byte{}, nil }, "empty"},
		"always another": {func(call int) ([]byte, error) {
			return fmt.Appendf(nil, borderPolicy, call), nil
		}, "keeps changing"},
		"half of it": {func(int) ([]byte, error) { return []byte(borderPolicy[:40]), nil }, "p:"},
		"hangs": {func(int) ([]byte, error) {
			<-time.After(2 * time.Minute) // of the bubble: a disk that does not answer
			return nil, gone
		}, "no answer"},
		"comes and goes, never whole": {func(call int) ([]byte, error) {
			if call%2 == 0 {
				return nil, gone
			}
			return fmt.Appendf(nil, borderPolicy, 2), nil
		}, "gone"},
	} {
		t.Run(name, func(t *testing.T) { watched(t, c.read, 100*time.Second, stoppedFor(c.reason)) })
	}
}

// A file that is written in place counts when it is whole, and one that loads again
// opens the border again.
func TestPolicyFileThatSettles(t *testing.T) {
	whole := fmt.Appendf(nil, borderPolicy, 3)
	watched(t, func(call int) ([]byte, error) {
		return whole[:min(len(whole), call*len(whole)/8)], nil
	}, 5*time.Second, func(t *testing.T, g *residency.Guard) {
		if st := g.Status(); st.State != residency.On || st.Err != nil || st.Revision != 3 || g.Version() != 2 {
			t.Fatalf("%+v, version %d", st, g.Version())
		}
	})
	watched(t, func(call int) ([]byte, error) {
		if call < 90 {
			return nil, errors.New("gone")
		}
		return whole, nil
	}, 100*time.Second, func(t *testing.T, g *residency.Guard) {
		if st := g.Status(); st.State != residency.On || st.Err != nil || st.Revision != 3 || g.Version() != 3 { // stopped, opened
			t.Fatalf("%+v, version %d", st, g.Version())
		}
	})
}
