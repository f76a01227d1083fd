package hostile_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/client"
)

// smallDisk is a directory with a file system of its own.
func smallDisk(t *testing.T, size int64) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("mounting a small file system needs the rights of root: %v", err)
	}
	t.Cleanup(func() { // after the processes have ended
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes the room of a file system but for what it leaves.
func fill(t *testing.T, dir string, leave int64) (file string) {
	t.Helper()
	file = filepath.Join(dir, "filler")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		var s syscall.Statfs_t
		if err := syscall.Statfs(dir, &s); err != nil {
			t.Fatal(err)
		}
		if leave > 0 && int64(s.Bavail)*s.Bsize < leave {
			return file
		}
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return file
}

// TestFullDisk: an instance whose disk fills up ends, in order if it can. What it has
// answered is there when it starts again with room, and it takes writes.
func TestFullDisk(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		name  string
		leave int64
		says  string // the end of the log; "" where there is no room for it
	}{
		{"nearly full", 40 * mib, "the disk of the data directory is full"},
		{"full at once", 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := deploy(t, spec{dir: smallDisk(t, 200*mib), register: true, embedded: true})
			var stored sync.Map // dots
			stop := make(chan struct{})
			var writers sync.WaitGroup
			for w := range 4 {
				writers.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
						a, err := d.us.Try(ctx, client.Write{Topic: "github", Key: fmt.Sprintf("%d-%d", w, i), Value: []byte(`"` + strings.Repeat("x", 2000) + `"`), Idem: fmt.Sprintf("%d-%d", w, i)})
						cancel()
						if err == nil {
							stored.Store(a.Dot, true)
						}
					}
				})
			}
			d.us.await(t, "writes", func(context.Context) error {
				n := 0
				stored.Range(func(any, any) bool { n++; return true })
				if n < 50 {
					return fmt.Errorf("%d are answered", n)
				}
				return nil
			})
			filler := fill(t, d.dir, tt.leave)
			select {
			case <-d.us.process.Done():
			case <-time.After(patience):
				t.Fatal("the process goes on without room")
			}
			close(stop)
			writers.Wait()
			if code := d.us.process.ExitCode(); code == 0 {
				t.Error("the process ends as if all was well")
			}
			if log := tail(d.us.log); !strings.Contains(log, tt.says) {
				t.Errorf("the log does not say %q:\n%s", tt.says, log)
			}
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			d.us.start(t)
			d.us.mustStore(t, client.Write{Topic: "github", Key: "again", Value: []byte("1"), Idem: "again"})
			n := neighbours{r: d.us, client: d.us.Client}
			seen := n.dots(t)
			stored.Range(func(dot, _ any) bool {
				if !seen[dot.(string)] {
					t.Errorf("the answered record %s is not in the log", dot)
				}
				return true
			})
		})
	}
}
