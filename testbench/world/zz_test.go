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
	b := make([]byte, 8<<20)
	os.WriteFile(name, b[:runtime.Stack(b, true)], 0o600)
}

func TestZZKill(t *testing.T) {
	w := world.Start(t, world.Options{})
	us := w.Region("us")
	us.AwaitReady()
	a := load(t, us, github, 4)
	for round := range 2 {
		before := len(read(t, us, github))
		tm := time.AfterFunc(8*time.Second, func() { dump("/tmp/dump.stuck"); fmt.Println("STUCK round", round) })
		w.Eventually("writes", func() error {
			if len(read(t, us, github)) < before+50 {
				return os.ErrNotExist
			}
			return nil
		})
		tm.Stop()
		tk := time.AfterFunc(7*time.Second, func() { dump("/tmp/dump.kill") })
		w.Kill("us")
		tk.Stop()
		w.StartAgain("us")
	}
	a.stop()
}
