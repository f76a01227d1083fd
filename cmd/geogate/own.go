package main

import (
	"context"

	"go.uber.org/fx"

	"github.com/geogate/geogate/internal/node"
)

// own starts components when the app starts, and stops them and waits for them
// when the app stops. It is the only place in the program that starts components.
// One that ends by itself takes the app down with it, and its error becomes the
// program's.
//
// The contexts of fx's hooks bound starting and stopping, so neither is a
// component's context: that one ends when its turn to stop comes.
func own(lc fx.Lifecycle, sd fx.Shutdowner, components ...node.Component) {
	var running *node.Running // fx calls the hooks one after the other
	watched := make(chan struct{})
	lc.Append(fx.Hook{
		OnStart: func(context.Context) error {
			running = node.Start(components...)
			go func() {
				defer close(watched)
				<-running.Done()
				if err := running.Err(); err != nil {
					// Fails only when the app is stopping anyway.
					_ = sd.Shutdown(fx.ExitCode(exitCode(err)))
				}
			}()
			return nil
		},
		OnStop: func(ctx context.Context) error {
			err := running.Stop(ctx)
			select {
			case <-watched:
			case <-ctx.Done(): // with no component that ended, the watch does not end either
			}
			return err
		},
	})
}
