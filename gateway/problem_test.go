package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/seat"
)

func TestSeatErrorsBecomeProblems(t *testing.T) {
	used := time.UnixMilli(goldenTime)
	for _, c := range []struct {
		err       error
		status    int
		code      code
		retriable bool
		after     string
	}{
		{seat.ErrInUse, 409, codeKeyInUse, true, "1"},
		{&seat.ReusedError{FirstUsed: used}, 422, codeKeyReused, false, ""},
		{&seat.OutcomeError{HadKey: true}, 503, codeOutcomeUnknown, true, "1"},
		{&seat.OutcomeError{}, 503, codeOutcomeUnknown, false, ""},
		{seat.ErrNotReady, 503, codeNotReady, true, "1"},
		{fmt.Errorf("partition flights/3: %w: %w", seat.ErrHeld, context.Canceled), 503, codeHeld, false, ""},
		{seat.ErrSuperseded, 503, codeNotReady, true, "1"},
		{seat.ErrDraining, 503, codeDraining, true, "5"},
		{seat.ErrOverloaded, 429, codeOverloaded, true, "1"},
		{seat.ErrDrift, 503, codeClockDrift, true, "5"},
		{seat.ErrUpstream, 503, codeUpstream, true, "2"},
		{ErrUpstream, 503, codeUpstream, true, "2"},
		{seat.ErrTooLarge, 413, codeRecordTooLarge, false, ""},
		{newProblem(codeNotOwner, "air/us is fenced").with("owner", nil), 409, codeNotOwner, false, ""},
		{newProblem(codeOwnershipUnproven, "the lease has run out"), 503, codeOwnershipUnproven, true, "3"},
		{invalid(codeKeyMissing, atHeader("Idempotency-Key", "the topic demands one")), 400, codeKeyMissing, false, ""},
		{errors.New("boom"), 500, codeInternal, false, ""},
	} {
		w := newWorld(t, nil)
		w.write = func(context.Context, seat.Request, int32) (seat.Answer, error) {
			return seat.Answer{}, fmt.Errorf("write: %w", c.err)
		}
		r := w.do(post("flights", `{"key":{"type":"string","data":"k"},"value":null}`, "Idempotency-Key", "k"))
		p := problemOf(t, r)
		if r.StatusCode != c.status || p["code"] != string(c.code) || p["retriable"] != c.retriable || r.Header.Get("Retry-After") != c.after {
			t.Errorf("%v: status %d, after %q, problem %v", c.err, r.StatusCode, r.Header.Get("Retry-After"), p)
		}
		if c.code == codeKeyReused && p["first_used"] != "2026-11-29T10:00:00.123Z" {
			t.Errorf("first_used in %v", p)
		}
		if _, has := p["owner"]; has != (c.code == codeNotOwner) {
			t.Errorf("owner in %v", p)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.WriteTimeout = 50 * time.Millisecond })
	body := post("flights", `{"key":{"type":"string","data":"k"},"value":null}`)
	w.openErr = context.DeadlineExceeded
	if p := problemOf(t, w.do(body)); p["code"] != "NOT_READY" {
		t.Errorf("open timed out: %v", p)
	}
	w.openErr = nil
	w.write = func(ctx context.Context, _ seat.Request, _ int32) (seat.Answer, error) {
		<-ctx.Done()
		return seat.Answer{}, ctx.Err()
	}
	if p := problemOf(t, w.do(body)); p["code"] != "OUTCOME_UNKNOWN" || p["retriable"] != false {
		t.Errorf("write timed out: %v", p)
	}
	w.listErr = fmt.Errorf("list: %w", ErrUpstream)
	if p := problemOf(t, w.do(body)); p["code"] != "UPSTREAM_UNAVAILABLE" {
		t.Errorf("topics cannot be listed: %v", p)
	}
}

func TestPanicIsInternal(t *testing.T) {
	w := newWorld(t, nil)
	w.panics = true
	r := w.do(post("flights", `{"key":{"type":"string","data":"k"},"value":null}`))
	if p := problemOf(t, r); p["code"] != "INTERNAL" || strings.Contains(fmt.Sprint(p), "secret") {
		t.Errorf("problem %v", p)
	}
}

func TestRequestIDs(t *testing.T) {
	w := newWorld(t, nil)
	for given, echoed := range map[string]bool{
		"01a226bf-4a00-7000-8000-000000000001": true, "a:b~c.d_e": true,
		"": false, "a b": false, "a\x01": false, strings.Repeat("a", 129): false, "ü": false,
	} {
		r := w.do(get("/v1/nope", "X-Request-Id", given))
		if got := r.Header.Get("X-Request-Id"); (got == given) != echoed || got == "" {
			t.Errorf("id %q answered with %q", given, got)
		}
	}
}
