package kept_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/kept"
)

// patience is how long the test waits for what must come about: far more than anything
// takes, so that a loaded machine fails no test.
const patience = 4 * time.Minute

func limit(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// The present code opens what e4aa663 left, reads the same, and goes on with it.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	goesOn(t, unpack(t), true)
}

// So it does when the stores are lost: they are caches. No store has anything of
// ownership, so nothing is fenced here, which takes W.
func TestGoesOnWithoutStores(t *testing.T) {
	t.Parallel()
	dir := unpack(t)
	for _, name := range []string{"us", "eu"} {
		store := filepath.Join(dir, name, "store")
		if _, err := os.Stat(store); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(store); err != nil {
			t.Fatal(err)
		}
	}
	goesOn(t, dir, false)
}

func goesOn(t *testing.T, dir string, fence bool) {
	t.Helper()
	want, err := kept.Load(filepath.Join(dataDir, kept.GoldenFile))
	if err != nil {
		t.Fatal(err)
	}
	held, err := kept.LoadHeld(filepath.Join(dataDir, kept.HeldFile))
	if err != nil {
		t.Fatal(err)
	}
	d := start(t, dir)
	ctx := limit(t)
	ruled, data := kept.Split(want)
	readsTheSame(ctx, t, d, kept.Ownership, ruled)

	// What was fenced may write again after the longest lease, which passes while the
	// rest is tried.
	if fence {
		if err := d.region("us").Command(ctx, "unfence", map[string]string{"unit": kept.FencedUnit}); err != nil {
			t.Fatal(err)
		}
	}
	readsTheSame(ctx, t, d, kept.Data, data)
	if err := held.Check(ctx, d.region); err != nil {
		t.Errorf("what clients hold is not good any more: %v", err)
	}
	for i, r := range d.all() {
		copied(ctx, t, r, d.all()[1-i])
	}
	if fence {
		fencesAgain(ctx, t, d)
	}
}

// reader reads a part of what regions show.
type reader func(context.Context, []*kept.Region) ([]kept.Section, error)

// readsTheSame waits until both regions show what a part of the golden file has.
func readsTheSame(ctx context.Context, t *testing.T, d *deployment, read reader, want []kept.Section) {
	t.Helper()
	last := ""
	err := kept.Poll(ctx, func() error {
		got, err := read(ctx, d.all())
		if err != nil {
			if ctx.Err() == nil || last == "" { // what the end of ctx broke off says little
				last = err.Error()
			}
			return err
		}
		if last = kept.Diff(want, got); last != "" {
			return errors.New(last)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("the kept data is not read as e4aa663 read it (%s):\n%s", kept.GoldenFile, last)
	}
}

// copied writes in one region and reads in the other: the seat, the link and the fold
// go on where those of e4aa663 ended.
func copied(ctx context.Context, t *testing.T, from, to *kept.Region) {
	t.Helper()
	body := fmt.Sprintf(`{"key":{"type":"string","data":"DTW"},"value":{"type":"json","data":{"now":"%s"}}}`, from.Name)
	w := kept.Write{Topic: "flights", Idem: "now-" + from.Name, Body: body}
	first, err := from.Store(ctx, w)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal([]byte(first.Body), &answer); err != nil {
		t.Fatal(err)
	}
	var got client.Entity
	if err := kept.Poll(ctx, func() (err error) {
		got, err = to.Entity(ctx, "flights", "DTW", answer.Token, "10s")
		return err
	}); err != nil {
		t.Fatalf("read in %s what was written in %s: %v", to.Name, from.Name, err)
	}
	if want := fmt.Sprintf(`{"now":"%s"}`, from.Name); got.Value.Text() != want {
		t.Fatalf("%s wrote %s\n%s reads %s", from.Name, first.Body, to.Name, got.Raw)
	}
	if again, err := from.Store(ctx, w); err != nil || !again.Replayed || again.Body != first.Body {
		t.Fatalf("first %s\nagain %s, %v", first.Body, again.Body, err)
	}
}

// fencesAgain writes to the unit that was left fenced, under a new epoch, and fences
// it once more.
func fencesAgain(ctx context.Context, t *testing.T, d *deployment) {
	t.Helper()
	us, eu := d.region("us"), d.region("eu")
	w := kept.Write{Topic: "spare", Idem: "unfenced", Body: `{"value":{"type":"json","data":"unfenced"}}`}
	first, err := eu.Store(ctx, w)
	if err != nil {
		t.Fatalf("write to %s after unfence: %v", kept.FencedUnit, err)
	}
	if err := kept.Poll(ctx, func() error {
		dots, _, err := us.Dots(ctx, "spare", "earliest", 0)
		if err == nil && len(dots) != 3 {
			err = fmt.Errorf("us shows %v", dots)
		}
		return err
	}); err != nil {
		t.Fatalf("the write of the new epoch does not come to us: %v", err)
	}
	if err := us.Command(ctx, "fence", map[string]string{"unit": kept.FencedUnit, "reason": "again"}); err != nil {
		t.Fatal(err)
	}
	w.Idem = "fenced"
	if answer, err := eu.Send(ctx, w); client.Code(err) != "NOT_OWNER" {
		t.Fatalf("a write to a fenced unit, after %s, is answered %s, %v", first.Body, answer.Body, err)
	}
}
