package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"

	"github.com/geogate/geogate/internal/node"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestWiring checks, without running anything, that everything that the apps of
// serve and demo ask for is provided.
func TestWiring(t *testing.T) {
	us, eu := node.Defaults(), node.Defaults()
	us.Region, eu.Region = "us", "eu"
	for name, app := range map[string]fx.Option{"serve": instances(discard(), false, false, us), "demo": instances(discard(), false, false, us, eu)} {
		if err := fx.ValidateApp(app); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWhyItStops: the log names a signal only if one came.
func TestWhyItStops(t *testing.T) {
	for name, tt := range map[string]struct {
		run  func(context.Context, fx.Shutdowner) error
		code int
		log  string
	}{
		"a component fails": {func(context.Context, fx.Shutdowner) error { return errors.New("no luck") }, exitInternal, "a component ended by itself"},
		"all is done": {func(ctx context.Context, sd fx.Shutdowner) error {
			err := sd.Shutdown(fx.ExitCode(exitDone))
			<-ctx.Done()
			return err
		}, exitOK, "all is done"},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			log := newLogger(&b, "info")
			err := runApp(fx.New(fxLog(log), fx.Invoke(func(lc fx.Lifecycle, sd fx.Shutdowner) {
				own(lc, sd, node.Component{Name: "part", Run: func(ctx context.Context) error { return tt.run(ctx, sd) }})
			})), time.Minute, log)
			if code := exitCode(err); code != tt.code {
				t.Errorf("exit code %d: %v", code, err)
			}
			if !strings.Contains(b.String(), tt.log) || strings.Contains(b.String(), `"signal"`) {
				t.Errorf("the log says:\n%s", b.String())
			}
		})
	}
}
