package world_test

import (
	"fmt"
	"testing"

	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/rounds"
	"github.com/geogate/geogate/testbench/world"
)

// TestEpochsAreJoined fences a unit so often that its owner joins the epochs in its record.
// What was written under each of them counts as before, also for who begins without a store
// and has only the joined ones to judge by.
func TestEpochsAreJoined(t *testing.T) {
	if testing.Short() {
		t.Skip("each fence waits for a lease")
	}
	t.Parallel()
	fences, join := rounds.Of(3, 9), rounds.Of(2, 0)
	w := world.Start(t, world.Options{Register: true, JoinEpochs: join})
	us, eu := w.Region("us"), w.Region("eu")
	want := map[string]bool{}
	for n := range fences {
		key := fmt.Sprint("under epoch ", n)
		writesAgain(t, w, us, client.Write{Topic: github, Key: key, Value: []byte(`1`), Idem: key})
		want[key] = true
		fence(t, eu, "repos/us", 0)
		unfence(t, eu, "repos/us")
	}
	writesAgain(t, w, us, client.Write{Topic: github, Key: "last", Value: []byte(`1`), Idem: "last"})
	want["last"] = true
	w.Eventually("the epochs to be joined", func() error {
		for _, r := range []*world.Region{us, eu} {
			epochs, err := epochsOf(t, r, "repos/us")
			if err != nil {
				return err
			}
			if e := epochs[0]; e.First != 17 || e.Epoch <= e.First || len(epochs) > fences {
				return fmt.Errorf("in %s they are %+v", r.Name, epochs)
			}
		}
		return nil
	})
	shows(t, w, github, want)
	for _, r := range []string{"us", "eu"} {
		w.Stop(r)
		w.DeleteStore(r)
		w.StartAgain(r)
	}
	us.AwaitReady()
	writesAgain(t, w, us, client.Write{Topic: github, Key: "after", Value: []byte(`1`), Idem: "after"})
	want["after"] = true
	shows(t, w, github, want)
	if orphans, err := us.Orphans("repos/us"); err != nil || len(orphans) > 0 {
		t.Errorf("orphans %+v: %v", orphans, err)
	}
}

// ownedEpoch is an entry of a unit's history.
type ownedEpoch struct {
	First uint64 `json:"first"`
	Epoch uint64 `json:"epoch"`
	Ended bool   `json:"ended"`
}

// epochsOf is a unit's history as a region's gateway knows it.
func epochsOf(t *testing.T, r *world.Region, unit string) ([]ownedEpoch, error) {
	t.Helper()
	var answer struct {
		Units []struct {
			Unit   string       `json:"unit"`
			Epochs []ownedEpoch `json:"epochs"`
		} `json:"units"`
	}
	if err := r.Client().Get(limit(t), "/v1/ownership", &answer); err != nil {
		return nil, err
	}
	for _, u := range answer.Units {
		if u.Unit == unit && len(u.Epochs) > 0 {
			return u.Epochs, nil
		}
	}
	return nil, fmt.Errorf("%s is not in %+v", unit, answer)
}
