//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/sleep"
)

// profile takes a CPU profile of the gateway of us for so long, if profiles are wanted.
// The function that it returns waits for it, and writes beside it what cost most.
func (w *world) profile(ctx context.Context, f figure, took time.Duration) func() error {
	if w.o.profile == "" {
		return func() error { return nil }
	}
	name := filepath.Join(w.o.profile, strings.NewReplacer(" ", "-", ",", "").Replace(fmt.Sprintf("%s %s %s", f.Program, f.Kafka, f.Work)))
	done := make(chan error, 1)
	go func() {
		raw, _, err := w.us.client.DoManagement(ctx, http.MethodGet, fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(took.Seconds()))), nil, nil)
		if err == nil {
			err = os.WriteFile(name+".pprof", raw, 0o644)
		}
		done <- err
	}()
	heap := make(chan error, 1)
	go func() { heap <- w.heapProfile(ctx, name, took*9/10) }()
	return func() error {
		if err := <-heap; err != nil {
			return fmt.Errorf("take a profile of the heap: %w", err)
		}
		if err := <-done; err != nil {
			return fmt.Errorf("take a profile: %w", err)
		}
		var errs []error
		for end, args := range map[string][]string{".top.txt": {"-top", "-nodecount=70"}, ".cum.txt": {"-top", "-cum", "-nodecount=160"}} {
			out, err := exec.CommandContext(ctx, "go", append(append([]string{"tool", "pprof"}, args...), w.bin, name+".pprof")...).Output()
			if err != nil {
				return fmt.Errorf("show a profile: %w", err)
			}
			errs = append(errs, os.WriteFile(name+end, out, 0o644))
		}
		return errors.Join(errs...)
	}
}

// heapProfile takes a profile of the gateway's heap after some time: what is in use, and
// what was allocated since the start.
func (w *world) heapProfile(ctx context.Context, name string, after time.Duration) error {
	if err := sleep.For(ctx, after); err != nil {
		return err
	}
	raw, _, err := w.us.client.DoManagement(ctx, http.MethodGet, "/debug/pprof/heap", nil, nil)
	if err != nil {
		return err
	}
	return os.WriteFile(name+".heap.pprof", raw, 0o644)
}
