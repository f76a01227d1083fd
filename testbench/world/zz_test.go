package world_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/world"
)

func dump(name string) {
	b := make([]byte, 16<<20)
	os.WriteFile(name, b[:runtime.Stack(b, true)], 0o600)
}

func TestZZKill(t *testing.T) {
	w := world.Start(t, world.Options{})
	us, eu := w.Region("us"), w.Region("eu")
	us.AwaitReady()
	eu.AwaitReady()
	a, b := load(t, us, github, 4), load(t, eu, github, 4)
	for round := range 12 {
		v := w.Regions()[round%2]
		before := len(read(t, v, github))
		tm := time.AfterFunc(8*time.Second, func() { dump("/tmp/dump.stuck"); fmt.Println("STUCK round", round, v.Name) })
		w.Eventually("writes", func() error {
			if len(read(t, v, github)) < before+50 {
				return os.ErrNotExist
			}
			return nil
		})
		tm.Stop()
		w.Kill(v.Name)
		w.StartAgain(v.Name)
	}
	acked := append(a.stop(), b.stop()...)
	w.Settle()
	copiedExactly(t, us, eu, github)
	copiedExactly(t, eu, us, github)
	for _, r := range w.Regions() {
		onceEach(t, r, github, acked)
	}
}
