package ownership_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/router/ownership/register"
)

// complaints tells of each error that is logged about the high-water mark.
type complaints struct {
	slog.Handler
	seen chan<- string
}

func (c complaints) Enabled(context.Context, slog.Level) bool { return true }

func (c complaints) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "high-water mark") {
		r.Attrs(func(a slog.Attr) bool {
			select {
			case c.seen <- a.Value.String():
			default:
			}
			return true
		})
	}
	return nil
}

// TestMarkOnAFullDisk: an epoch whose mark cannot be written is not used, since a start
// after a crash would not know of it. With room it is.
func TestMarkOnAFullDisk(t *testing.T) {
	s := newSite(t, "us", 1)
	if err := syscall.Mount("tmpfs", s.dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting a small file system needs the rights of root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(s.dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(s.dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("1 MiB fits into 64 KiB")
	}
	seen := make(chan string, 1)
	s.log = slog.New(complaints{slog.DiscardHandler, seen})
	n := startNATS(t, embed.NATS{Name: "ctl-us", StoreDir: t.TempDir()})
	a, _ := s.start(register.Config{Dialer: n.Dialer(), Replicas: 1})
	for range 3 {
		select {
		case why := <-seen:
			if !strings.Contains(why, "no space left") {
				t.Errorf("the log says %q", why)
			}
		case <-time.After(time.Minute):
			t.Fatal("nothing is logged about a mark that cannot be written")
		}
	}
	const unit = "default/us"
	if granted(a, unit)() {
		t.Error("a unit is granted although its epoch is on no disk")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	until(t, patience, "grant", granted(a, unit))
	if left, err := filepath.Glob(filepath.Join(s.dir, "hwm-*")); err != nil || len(left) > 0 {
		t.Errorf("files are left behind: %v, %v", left, err)
	}
}
