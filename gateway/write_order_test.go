package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/expr"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

func lineOf(key, value string) string {
	return fmt.Sprintf(`{"key":{"type":"string","data":%q},"value":{"type":"string","data":%q}}`, key, value)
}

// streamed sends lines and gives what each was answered: its code, or "ok".
func (w *world) streamed(topic string, lines []string) []string {
	w.t.Helper()
	r := w.do(post(topic, strings.Join(lines, "\n"), "Content-Type", "application/x-ndjson", "Idempotency-Key", "batch"))
	var codes []string
	for line := range strings.Lines(text(w.t, r)) {
		var a struct {
			Ack     string
			Problem struct{ Code string }
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			w.t.Fatalf("answer %s: %v", line, err)
		}
		if a.Ack != "" {
			a.Problem.Code = "ok"
		}
		codes = append(codes, a.Problem.Code)
	}
	return codes
}

// TestKeyStopsAtAFailure: after a line that may yet be stored, no later line of its
// record key is; lines of other keys are, and lines after one that is wrong in itself.
func TestKeyStopsAtAFailure(t *testing.T) {
	notOwner := &ownership.NotOwnerError{Unit: "air/us", State: ownership.UnitActive}
	for name, tt := range map[string]struct {
		topic string
		err   error
		code  string
		stops bool
	}{
		"in use":                  {"flights", seat.ErrInUse, "IDEMPOTENCY_KEY_IN_USE", true},
		"outcome unknown":         {"flights", &seat.OutcomeError{HadKey: true}, "OUTCOME_UNKNOWN", true},
		"outcome unknown, no key": {"flights", &seat.OutcomeError{}, "OUTCOME_UNKNOWN", true},
		"upstream":                {"github", seat.ErrUpstream, "UPSTREAM_UNAVAILABLE", true},
		"drift":                   {"flights", seat.ErrDrift, "CLOCK_DRIFT", true},
		"draining":                {"flights", seat.ErrDraining, "DRAINING", true},
		"superseded":              {"flights", fmt.Errorf("%w: %w", seat.ErrNotReady, seat.ErrSuperseded), "NOT_READY", true},
		"held":                    {"flights", seat.ErrHeld, "PARTITION_HELD", true},
		"unproven":                {"flights", ownership.ErrUnproven, "OWNERSHIP_UNPROVEN", true},
		"defect":                  {"flights", errors.New("no such thing"), "INTERNAL", true},
		"not owner":               {"flights", notOwner, "NOT_OWNER", true},
		"not owner, by key":       {"orders", notOwner, "NOT_OWNER", false},
		"reused":                  {"flights", &seat.ReusedError{}, "IDEMPOTENCY_KEY_REUSED", false},
		"too large":               {"flights", seat.ErrTooLarge, "RECORD_TOO_LARGE", false},
	} {
		t.Run(name, func(t *testing.T) {
			here, err := expr.CompileText(`"us"`)
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, nil)
			w.topics["orders"] = Topic{Name: "orders", ID: [16]byte{9}, Partitions: 6, Domain: ownership.Domain{
				Name: "orders", Kind: w.topics["flights"].Domain.Kind, Mode: ownership.ByKey, Home: here, Rule: event.LWW,
			}}
			w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
				if string(req.Value) == "2" {
					return seat.Answer{}, tt.err
				}
				return w.accept(ctx, req, p)
			}
			after := "ok"
			if tt.stops {
				after = "NOT_READY"
			}
			lines := []string{lineOf("a", "1"), lineOf("a", "2"), lineOf("b", "1"), lineOf("a", "3"), `{"value":`, lineOf("a", "4"), lineOf("b", "2b")}
			want := []string{"ok", tt.code, "ok", after, "MALFORMED", after, "ok"}
			if got := w.streamed(tt.topic, lines); !slices.Equal(got, want) {
				t.Errorf("answers %v, want %v", got, want)
			}
			for _, q := range w.wrote {
				if tt.stops && string(q.Key) == "a" && string(q.Value) > "2" {
					t.Errorf("the seat was given line %s after the failure", q.Value)
				}
			}
		})
	}
}

// TestNothingAfterALineOfUnknownKey: a line that the gateway could not take in may be
// of any key.
func TestNothingAfterALineOfUnknownKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config, _ *Deps) { c.MaxRecord, c.MaxBody, c.MaxInflight = 1<<10, 8<<10, 16<<10 })
		w.s.bodies.add(peerN(1), 16<<10-500) // others have taken what there is, but for 500 bytes
		got := w.streamed("flights", []string{lineOf("a", "1"), lineOf("b", strings.Repeat("x", 900)), lineOf("b", "2"), lineOf("c", "1")})
		if want := []string{"ok", "OVERLOADED", "NOT_READY", "NOT_READY"}; !slices.Equal(got, want) {
			t.Errorf("answers %v, want %v", got, want)
		}
	})
}

// TestStreamWaitsForAColdSeat: a seat that is not ready yet makes the stream wait; one
// that does not become ready does so once.
func TestStreamWaitsForAColdSeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		start := time.Now()
		var stored []string
		ready := func() bool { return time.Since(start) > 20*time.Second }
		var mu sync.Mutex
		w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
			mu.Lock()
			defer mu.Unlock()
			if !ready() {
				return seat.Answer{}, seat.ErrNotReady
			}
			stored = append(stored, string(req.Value))
			return w.accept(ctx, req, p)
		}
		var lines, want []string
		for i := range 50 {
			lines, want = append(lines, lineOf("a", fmt.Sprint(i))), append(want, fmt.Sprint(i))
		}
		if got := w.streamed("flights", lines); slices.ContainsFunc(got, func(c string) bool { return c != "ok" }) || !slices.Equal(stored, want) {
			t.Errorf("answers %v, stored %v", got, stored)
		}
		start, ready = time.Now(), func() bool { return false }
		lines = nil
		for i := range 1000 {
			lines = append(lines, lineOf(fmt.Sprint(i), "x"))
		}
		got := w.streamed("flights", lines)
		if i := slices.IndexFunc(got, func(c string) bool { return c != "NOT_READY" }); i >= 0 || len(got) != 1000 {
			t.Errorf("%d answers, one is %v", len(got), got[max(i, 0)])
		}
		// Lines that are in flight side by side wait side by side; those that come
		// later find out that it is in vain.
		if took := time.Since(start); took < w.s.cfg.WriteTimeout || took > 2*w.s.cfg.WriteTimeout {
			t.Errorf("a seat that does not become ready takes a stream %s", took)
		}
	})
}

// TestResendEndsWithTheLastLine plays streams whose lines fail at random, in all ways
// that a resend may mend, and clients that send the whole stream again until nothing
// fails: for each key the last line is then the one that was stored last.
func TestResendEndsWithTheLastLine(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, nil)
		log := map[string][]string{} // values in the order in which they were stored, by key
		known := map[event.IdempotencyKey]bool{}
		var mu sync.Mutex
		failures := rapid.IntRange(0, 30).Draw(rt, "failures")
		seed := rapid.Uint64().Draw(rt, "seed")
		w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
			mu.Lock()
			defer mu.Unlock()
			if known[req.Idempotency] {
				return w.accept(ctx, req, p) // a replay
			}
			var err error
			store := true
			if seed = seed*6364136223846793005 + 1442695040888963407; failures > 0 && seed>>60 < 8 {
				failures--
				switch seed >> 40 % 4 {
				case 0:
					err, store = seat.ErrUpstream, false
				case 1:
					err, store = seat.ErrInUse, false
				case 2:
					err, store = &seat.OutcomeError{HadKey: true}, false
				case 3:
					err = &seat.OutcomeError{HadKey: true}
				}
			}
			if store {
				known[req.Idempotency] = true
				log[string(req.Key)] = append(log[string(req.Key)], string(req.Value))
			}
			if err != nil {
				return seat.Answer{}, err
			}
			return w.accept(ctx, req, p)
		}
		var lines []string
		last := map[string]string{}
		for i := range rapid.IntRange(1, 60).Draw(rt, "lines") {
			key := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "key")
			last[key] = fmt.Sprint(i)
			lines = append(lines, lineOf(key, last[key]))
		}
		for try := 0; slices.ContainsFunc(w.streamed("flights", lines), func(c string) bool { return c != "ok" }); try++ {
			if try > 100 {
				rt.Fatal("the stream never succeeds")
			}
		}
		for key := range maps.Keys(last) {
			if got := log[key]; got[len(got)-1] != last[key] {
				rt.Errorf("key %s ends with line %s, not %s: %v in partition %d", key, got[len(got)-1], last[key], got, router.Partition([]byte(key), 6))
			}
		}
	})
}

// TestStreamRetriesInOrder plays seats that refuse at random what may be waited for, of
// lines whose record keys go to more than one partition: every line is stored, once, and
// those of a key in the order of the stream.
func TestStreamRetriesInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		failures := rapid.IntRange(0, 40).Draw(rt, "failures")
		seed := rapid.Uint64().Draw(rt, "seed")
		var lines []string
		want := map[string][]string{}
		for i := range rapid.IntRange(1, 80).Draw(rt, "lines") {
			key := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "key")
			line := lineOf(key, fmt.Sprint(i))
			if p := rapid.IntRange(-2, 1).Draw(rt, "partition"); p >= 0 {
				line = strings.TrimSuffix(line, "}") + fmt.Sprintf(`,"partition":%d}`, p)
			}
			lines, want[key] = append(lines, line), append(want[key], fmt.Sprint(i))
		}
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			log := map[string][]string{}
			var mu sync.Mutex
			w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
				mu.Lock()
				seed = seed*6364136223846793005 + 1442695040888963407
				now := seed
				mu.Unlock()
				_ = sleep.For(ctx, time.Duration(now>>40%1000)*time.Microsecond)
				mu.Lock()
				defer mu.Unlock()
				if failures > 0 && now>>60 < 6 {
					failures--
					if now>>50&1 == 0 {
						return seat.Answer{}, seat.ErrNotReady
					}
					return seat.Answer{}, seat.ErrOverloaded
				}
				log[string(req.Key)] = append(log[string(req.Key)], string(req.Value))
				return w.accept(ctx, req, p)
			}
			if got := w.streamed("github", lines); slices.ContainsFunc(got, func(c string) bool { return c != "ok" }) || len(got) != len(lines) {
				rt.Errorf("answers %v", got)
			}
			for key := range maps.Keys(want) {
				if !slices.Equal(log[key], want[key]) {
					rt.Errorf("of key %s are stored %v, want %v", key, log[key], want[key])
				}
			}
			if w.s.writer.flights.inUse() != 0 || w.s.bodies.total() != 0 || w.s.unread.total() != 0 {
				rt.Errorf("%d partitions are in flight, %d bytes and %d of answers are held", w.s.writer.flights.inUse(), w.s.bodies.total(), w.s.unread.total())
			}
		})
	})
}

// TestOneKeyElsewhere: a line whose record key is in flight in another partition waits for
// it; one whose key is not does not.
func TestOneKeyElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		stored := make(map[string]time.Duration)
		var mu sync.Mutex
		start := time.Now()
		w.write = func(ctx context.Context, req seat.Request, p int32) (seat.Answer, error) {
			_ = sleep.For(ctx, time.Second)
			mu.Lock()
			defer mu.Unlock()
			stored[string(req.Value)] = time.Since(start)
			return w.accept(ctx, req, p)
		}
		at := func(key, value string, p int32) string {
			return strings.TrimSuffix(lineOf(key, value), "}") + fmt.Sprintf(`,"partition":%d}`, p)
		}
		home := router.Partition([]byte("a"), 2)
		lines := []string{lineOf("a", "1"), lineOf("b", "2"), at("c", "3", 1-router.Partition([]byte("c"), 2)), at("a", "4", 1-home), at("a", "5", 1-home), lineOf("c", "6")}
		if got := w.streamed("github", lines); slices.ContainsFunc(got, func(c string) bool { return c != "ok" }) {
			t.Fatalf("answers %v", got)
		}
		for value, want := range map[string]time.Duration{"1": 1, "2": 1, "3": 1, "4": 2, "5": 3, "6": 2} {
			if got := stored[value]; got != want*time.Second {
				t.Errorf("line %s is stored after %s, want %d s", value, got, want)
			}
		}
	})
}

// TestFlightsAreForgotten: of partitions without writes in flight only so many are kept.
func TestFlightsAreForgotten(t *testing.T) {
	var f flights
	used, _ := f.begin(t.Context(), logKey{event.TopicID{1}, 0}, peerN(1), 1, 1, 0)
	for p := range int32(3 * idleFlights) {
		one, ok := f.begin(t.Context(), logKey{event.TopicID{2}, p}, peerN(1), 1, 1, 0)
		if !ok {
			t.Fatalf("partition %d has no room", p)
		}
		one.end()
	}
	if len(f.of) > idleFlights || f.inUse() != 1 || f.of[used.key].writes.total() != 1 {
		t.Errorf("%d partitions, %d in use", len(f.of), f.inUse())
	}
	used.end()
}
