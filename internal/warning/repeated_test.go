package warning_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/warning"
)

// logged is what a log got, a line each, without times and levels.
func logged(out *bytes.Buffer) []string {
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	out.Reset()
	if len(lines) == 1 && lines[0] == "" {
		return nil
	}
	return lines
}

func seldomLog(out *bytes.Buffer) *slog.Logger {
	return slog.New(warning.LogSeldom(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})))
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("the log got\n  %q\nnot\n  %q", got, want)
	}
}

// TestLogSeldom repeats a trouble as a loop does that tries again.
func TestLogSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &bytes.Buffer{}
		log := seldomLog(out)
		for i := range 41 {
			log.Warn("cannot start; will try again", "err", fmt.Errorf("read from port %d: refused", 40000+i), "since", time.Duration(i))
			if i < 40 {
				_ = sleep.For(t.Context(), time.Second/2)
			}
		}
		want(t, logged(out),
			`msg="cannot start; will try again" err="read from port 40000: refused" since=0s`,
			`msg="cannot start; will try again" err="read from port 40020: refused" since=20ns times=20`,
			`msg="cannot start; will try again" err="read from port 40040: refused" since=40ns times=20`)

		// What differs in an attribute, of the line or of the logger, is another trouble.
		for range 2 {
			log.Warn("cannot list", "topic", "a")
			log.Warn("cannot list", "topic", "b")
			log.With("topic", "a", "link", "x").Warn("cannot list")
			log.With("topic", "a", "link", "y").Warn("cannot list")
			log.WithGroup("g").Warn("cannot list", "topic", "a")
		}
		want(t, logged(out), `msg="cannot list" topic=a`, `msg="cannot list" topic=b`, `msg="cannot list" topic=a link=x`,
			`msg="cannot list" topic=a link=y`, `msg="cannot list" g.topic=a`)

		// Other levels pass each time.
		for range 2 {
			log.Info("started")
			log.Error("gone", "err", errors.New("x"))
		}
		want(t, logged(out), `msg=started`, `msg=gone err=x`, `msg=started`, `msg=gone err=x`)
	})
}

// TestLogSeldomIsBounded logs more kinds of trouble than are remembered.
func TestLogSeldomIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &bytes.Buffer{}
		log := seldomLog(out)
		const most = 4096
		for i := range most {
			log.Warn("cannot list", "topic", i)
		}
		if n := len(logged(out)); n != most {
			t.Fatalf("%d of %d different warnings were logged", n, most)
		}
		for range 2 { // not remembered, so not held back either
			log.Warn("cannot list", "topic", "more")
		}
		want(t, logged(out), `msg="cannot list" topic=more`, `msg="cannot list" topic=more`)
		_ = sleep.For(t.Context(), time.Minute)
		for range 2 { // the old ones are forgotten
			log.Warn("cannot list", "topic", "more")
		}
		want(t, logged(out), `msg="cannot list" topic=more`)
	})
}
