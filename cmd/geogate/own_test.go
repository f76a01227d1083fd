package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"

	"github.com/geogate/geogate/internal/node"
)

// codedError has an exit code, as a component's error may.
type codedError struct{}

func (codedError) Error() string { return "taken over" }
func (codedError) ExitCode() int { return exitMoved }

// untilDone is a component that runs until it is told to stop.
func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// appOf makes an app of components only.
func appOf(components ...node.Component) *fx.App {
	return fx.New(fx.NopLogger, fx.Invoke(func(lc fx.Lifecycle, sd fx.Shutdowner) {
		own(lc, sd, components...)
	}))
}

func TestOwnEndsWithAComponent(t *testing.T) {
	for name, tt := range map[string]struct {
		run  func(context.Context) error
		code int
		want string
	}{
		"error":      {func(context.Context) error { return errors.New("boom") }, exitInternal, "run part: boom"},
		"coded":      {func(context.Context) error { return codedError{} }, exitMoved, "run part: taken over"},
		"no error":   {func(context.Context) error { return nil }, exitInternal, "ended by itself"},
		"own cancel": {func(context.Context) error { return context.Canceled }, exitInternal, "run part: context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			app := appOf(node.Component{Name: "rest", Run: untilDone}, node.Component{Name: "part", Run: tt.run})
			err := runApp(app, time.Minute, discard())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if code := exitCode(err); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
		})
	}
}

func TestOwnBoundsStopping(t *testing.T) {
	release := make(chan struct{})
	ended := make(chan struct{})
	stuck := node.Component{Name: "stuck", Run: func(context.Context) error {
		defer close(ended)
		<-release
		return nil
	}}
	app := appOf(stuck, node.Component{Name: "part", Run: func(context.Context) error { return errors.New("boom") }})
	err := runApp(app, 10*time.Millisecond, discard())
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(release)
	<-ended
}
