package world_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// TestKeysExpireWhileARegionIsFenced: a region that is dead holds the expiry of keys, for
// nobody knows what it has stored; once it is fenced, and all up to its cut was read, a write
// under a used key is stored again after the window, and not answered with the old one.
func TestKeysExpireWhileARegionIsFenced(t *testing.T) {
	t.Parallel()
	const window = 4 * time.Second
	w := world.Start(t, world.Options{Register: true, Configure: func(c *node.Config) { c.Idempotency.Window = window }})
	us, eu := w.Region("us"), w.Region("eu")
	began := time.Now()
	first := us.Put(github, "octo", `1`, world.Idem("k"))
	there := eu.Put(github, "octo", `2`, world.Idem("of eu"))
	w.Settle()
	w.Kill("eu")
	retry := client.Write{Topic: github, Key: "octo", Value: []byte(`1`), Idem: "k"}
	// What is written now has stamps past the window, and still the key is held: eu may
	// have stored it again.
	w.Eventually("time to pass by more than the window", func() error {
		if us.Put(github, "octo", `3`); time.Since(began) < 2*window {
			return fmt.Errorf("%s have passed", time.Since(began))
		}
		return nil
	})
	if a, err := us.Try(limit(t), retry); err != nil || !a.Replayed || a.Dot != first.Dot {
		t.Fatalf("while eu is dead a retry is answered %+v, %v; want %s again", a, err, first.Dot)
	}
	fence(t, us, "eu", 10)
	var again client.Answer
	w.Eventually("the keys to expire", func() (err error) {
		if again, err = us.Try(limit(t), retry); err != nil || again.Replayed {
			return fmt.Errorf("answered %+v, %v", again, err)
		}
		return nil
	})
	if again.Dot == first.Dot {
		t.Fatalf("stored again as %s", again.Dot)
	}
	if a, err := us.Try(limit(t), client.Write{Topic: github, Key: "octo", Value: []byte(`2`), Idem: "of eu"}); err != nil || a.Replayed || a.Dot == there.Dot {
		t.Errorf("under a key of eu's, which has expired too: %+v, %v", a, err)
	}
	// It counts: both effects are in the merged view, of the region that comes back too.
	w.StartAgain("eu")
	w.Settle()
	for _, r := range w.Regions() {
		n := 0
		for _, rec := range of(records(t, r, github, "merged"), "octo") {
			if rec.Value.Text() == `1` {
				n++
			}
		}
		if n != 2 {
			t.Errorf("%s shows the write of the key %d times, want twice: window and window", r.Name, n)
		}
	}
}
