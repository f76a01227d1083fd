package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/internal/warning"
)

// TestDisk: the status warns when room gets scarce anywhere in the data directory, and
// the component ends by itself before there is none.
func TestDisk(t *testing.T) {
	room := map[string]strict.Size{"data": 3 * strict.GiB, "data/store": strict.GiB}
	d := newDisk("data")
	d.ask = func(dir string) (int64, bool) {
		n, ok := room[dir]
		return int64(n), ok
	}
	codes := func() (codes []warning.Code) {
		t.Helper()
		out := new(warning.List)
		d.Warnings(out)
		for c := range out.Count() {
			codes = append(codes, c)
		}
		return codes
	}
	if got := codes(); len(got) > 0 {
		t.Errorf("before anything is known: %v", got)
	}
	for _, step := range []struct {
		free  strict.Size
		warns bool
		ends  bool
	}{{strict.GiB, false, false}, {lowFree - 1, true, false}, {leastFree, true, false}, {lowFree, false, false}, {leastFree - 1, true, true}} {
		room["data/store"] = step.free
		err := d.look()
		if errors.Is(err, ErrDiskFull) != step.ends || (err == nil) == step.ends {
			t.Errorf("with %s: %v", step.free, err)
		}
		if got := codes(); (len(got) == 1 && got[0] == warning.DiskLow) != step.warns {
			t.Errorf("with %s: warnings %v", step.free, got)
		}
	}
	if err := d.Run(context.Background()); !errors.Is(err, ErrDiskFull) || !strings.Contains(err.Error(), "data/store has 63 MiB left") {
		t.Errorf("Run ends with %v", err)
	}
	d.ask = func(string) (int64, bool) { return 0, false }
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.Run(ctx); err != nil || d.look() != nil || len(codes()) > 0 {
		t.Errorf("where it cannot be found out: %v", err)
	}
}
