package main

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/fx"

	"github.com/geogate/geogate/internal/node"
)

// errEnded is what a component that ends by itself, without an error, is
// reported with: components run until they are told to stop.
var errEnded = errors.New("ended by itself")

// own starts a component when the app starts and waits for it when the app
// stops. It is the only place in the program that starts a component's first
// goroutine. A component that ends by itself takes the app down with it, and its
// error becomes the program's.
//
// The contexts of fx's hooks bound starting and stopping, so neither is the
// component's context: that one ends when stopping begins.
func own(lc fx.Lifecycle, sd fx.Shutdowner, c node.Component) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	lc.Append(fx.Hook{
		OnStart: func(context.Context) error {
			go func() {
				err := c.Run(ctx)
				ownEnd := ctx.Err() == nil
				if ownEnd && err == nil {
					err = errEnded
				}
				if !ownEnd && errors.Is(err, context.Canceled) {
					err = nil
				}
				done <- err
				if ownEnd {
					// Fails only when the app is stopping anyway.
					_ = sd.Shutdown(fx.ExitCode(exitCode(err)))
				}
			}()
			return nil
		},
		OnStop: func(stop context.Context) error {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					return fmt.Errorf("run %s: %w", c.Name, err)
				}
				return nil
			case <-stop.Done():
				return fmt.Errorf("stop %s: %w", c.Name, stop.Err())
			}
		},
	})
}
