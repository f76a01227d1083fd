package world_test

import (
	"fmt"
	"testing"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// unsettled waits until status says something of the frontiers of a region.
func unsettled(t *testing.T, w *world.World, r *world.Region, what string, ok func([]gateway.FrontierStatus) bool) {
	t.Helper()
	w.Eventually(what+" in "+r.Name, func() error {
		if list := status(t, r).Frontiers; !ok(list) {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
}

func nothing(list []gateway.FrontierStatus) bool { return len(list) == 0 }

// TestFrontiersMove: once every region has folded everything and the others have heard of
// it, nothing is unsettled anywhere. A region that is down holds what is written then, and
// says so, fenced or not, until it is back.
func TestFrontiersMove(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Register: true})
	us, eu := w.Region("us"), w.Region("eu")
	keys := 0
	write := func(r *world.Region, n int) {
		for i := range n {
			keys++
			r.Put(flights, fmt.Sprint("flight-", i), `{"by":"`+r.Name+`"}`, world.Idem(fmt.Sprint("key-", keys)))
			r.Put(github, fmt.Sprint("repo-", i), `1`)
		}
	}
	write(us, 8)
	write(eu, 8)
	w.CutAll()
	us.Put(flights, "twin", `1`, world.Idem("twin"))
	eu.Put(flights, "twin", `1`, world.Idem("twin"))
	w.HealAll()
	w.Settle()
	unsettled(t, w, us, "everything to be settled", nothing)
	unsettled(t, w, eu, "everything to be settled", nothing)

	w.Kill("eu")
	write(us, 4)
	held := func(list []gateway.FrontierStatus) bool {
		for _, f := range list {
			if f.Topic == flights && f.Offsets >= 4 && f.Needed >= f.Offsets && f.Origin == "us" && f.HeldBy == "fold" && f.Region != nil && *f.Region == "eu" {
				return true
			}
		}
		return false
	}
	unsettled(t, w, us, "flights to be held by eu", held)
	fence(t, us, "eu", 10)
	write(us, 1)
	unsettled(t, w, us, "flights to be held by eu, which is fenced", held)
	w.Stop("us")
	w.DeleteStore("us")
	w.StartAgain("us")
	unsettled(t, w, us, "flights to be held by eu after a lost store", held)
	w.StartAgain("eu")
	w.Settle()
	unsettled(t, w, us, "everything to be settled", nothing)
	unfence(t, us, "eu")
	writesAgain(t, w, eu, client.Write{Topic: flights, Key: "again", Value: []byte(`2`)})
	w.Settle()
	unsettled(t, w, us, "everything to be settled", nothing)
	unsettled(t, w, eu, "everything to be settled", nothing)
}
