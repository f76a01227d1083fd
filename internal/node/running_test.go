package node_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/geogate/geogate/internal/node"
)

// untilStopped is a component that runs until it is told to stop.
func untilStopped(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestStopGoesBackwards(t *testing.T) {
	var mu sync.Mutex
	var order []string
	var components []node.Component
	for _, name := range []string{"store", "seats", "http"} {
		components = append(components, node.Component{Name: name, Run: func(ctx context.Context) error {
			err := untilStopped(ctx)
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			return err
		}})
	}
	running := node.Start(components...)
	if err := running.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if got := strings.Join(order, " "); got != "http seats store" {
		t.Errorf("stopped in the order %s", got)
	}
	<-running.Done()
	if err := running.Err(); err != nil {
		t.Errorf("stopped components have the error %v", err)
	}
}

func TestFirstEndIsTheError(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		end  error
		want error
	}{
		"error":      {broken, broken},
		"no error":   {nil, node.ErrEnded},
		"own cancel": {context.Canceled, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			running := node.Start(node.Component{Name: "rest", Run: untilStopped},
				node.Component{Name: "part", Run: func(context.Context) error { return tt.end }})
			<-running.Done()
			if err := running.Err(); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), "part") {
				t.Errorf("Err is %v, want part: %v", err, tt.want)
			}
			if err := running.Stop(t.Context()); !errors.Is(err, tt.want) {
				t.Errorf("Stop gives %v, want %v", err, tt.want)
			}
		})
	}
}

func TestStopIsBounded(t *testing.T) {
	release := make(chan struct{})
	running := node.Start(node.Component{Name: "first", Run: untilStopped},
		node.Component{Name: "stuck", Run: func(context.Context) error { <-release; return nil }})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := running.Stop(over); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "stop stuck") {
		t.Errorf("Stop gives %v, want one that names the component that does not end", err)
	}
	close(release)
	if err := running.Stop(t.Context()); err != nil {
		t.Errorf("the second Stop gives %v", err)
	}
}
