package world_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router/ownership"
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

// TestRetiredRegion: a region that is dead and fenced holds nothing once it is retired. Its
// gateway, which comes back on its old disk, takes no writes and fences nobody. When it is
// returned it catches up with what was settled without it, and takes part again.
func TestRetiredRegion(t *testing.T) {
	t.Parallel()
	w := world.Start(t, world.Options{Register: true})
	us, eu := w.Region("us"), w.Region("eu")
	keys := 0
	write := func(n int) {
		for i := range n {
			keys++
			us.Put(flights, fmt.Sprint("flight-", i), `{"by":"us"}`, world.Idem(fmt.Sprint("key-", keys)))
			us.Put(github, fmt.Sprint("repo-", i), `1`)
		}
	}
	write(4)
	kept := eu.Put(flights, "kept", `1`)
	w.Settle()
	ask := func(at *world.Region, verb, region string, code ownership.ResultCode, says string) {
		t.Helper()
		var r ownership.Result
		var err error
		switch ctx := limit(t); verb {
		case "retire":
			r, err = at.Retire(ctx, region, "test")
		case "return":
			r, err = at.Return(ctx, region)
		case "fence":
			r, err = at.Fence(ctx, region, "test")
		default:
			r, err = at.Unfence(ctx, region)
		}
		if err != nil || r.Code != code || !strings.Contains(r.Detail, says) {
			t.Fatalf("%s %s from %s: %+v, %v", verb, region, at.Name, r, err)
		}
	}
	ask(us, "retire", "eu", ownership.ResultPrecondition, "is not fenced")
	ask(us, "retire", "us", ownership.ResultPrecondition, "own gateways")
	ask(us, "return", "eu", ownership.ResultPrecondition, "is not retired")

	w.Kill("eu")
	write(4)
	fence(t, us, "eu", 10)
	// Whether eu had told of its folds before it was killed is not certain.
	held := func(list []gateway.FrontierStatus) bool {
		return len(list) > 0 && (list[0].HeldBy == "fold" || list[0].HeldBy == "unheard")
	}
	unsettled(t, w, us, "what eu has not seen to be held", held)
	ask(us, "retire", "eu", ownership.ResultDone, "is retired")
	ask(us, "retire", "eu", ownership.ResultDone, "is retired")
	unsettled(t, w, us, "everything to be settled without eu", nothing)
	ask(us, "unfence", "eu", ownership.ResultPrecondition, "is retired")
	ask(us, "fence", "eu", ownership.ResultPrecondition, "is retired")
	for _, r := range status(t, us).Regions {
		if (r.Retired != nil) != (r.Name == "eu") || r.Name == "eu" && (r.State != "RETIRED" || r.Retired.By != "us" || r.Retired.Reason != "test" || time.Since(time.Time(r.Retired.Since)) > time.Hour) {
			t.Errorf("status of %s: %+v, %+v", r.Name, r, r.Retired)
		}
	}
	write(8)
	unsettled(t, w, us, "what was written since to be settled", nothing)
	if got, err := us.Entity(flights, "kept"); err != nil || got.Value == nil {
		t.Errorf("what eu had written is %+v, %v in us (%+v)", got, err, kept)
	}

	w.StartAgain("eu")
	w.Eventually("eu to say that it is retired", func() error {
		_, err := eu.Try(limit(t), client.Write{Topic: flights, Key: "late", Value: []byte(`1`)})
		if client.Code(err) != "NOT_OWNER" || !strings.Contains(err.Error(), "is retired") {
			return fmt.Errorf("a write: %w", err)
		}
		if !warns(status(t, eu).Warnings, warning.RegionRetired, "eu", "geogate region return eu") {
			return errors.New("no warning")
		}
		return nil
	})
	ask(eu, "fence", "us", ownership.ResultPrecondition, "is retired")
	ask(eu, "retire", "us", ownership.ResultPrecondition, "is retired")
	ask(eu, "unfence", "eu", ownership.ResultPrecondition, "is retired")
	for _, u := range status(t, us).Units {
		if u.Unit == "air/us" && (u.Owner == nil || *u.Owner != "us") {
			t.Errorf("after a retired region was asked for fences: %+v", u)
		}
	}
	ask(us, "return", "eu", ownership.ResultDone, "waited for again")
	w.Eventually("eu to catch up", func() error {
		for _, r := range status(t, eu).Regions {
			if r.Name == "eu" && r.State != "FENCED" {
				return fmt.Errorf("it is %s: %+v", r.State, r.Retired)
			}
		}
		return nil
	})
	ask(us, "return", "eu", ownership.ResultPrecondition, "is not retired")
	unfence(t, us, "eu")
	writesAgain(t, w, eu, client.Write{Topic: flights, Key: "again", Value: []byte(`2`)})
	w.Settle()
	unsettled(t, w, us, "everything to be settled with eu", nothing)
	unsettled(t, w, eu, "everything to be settled with eu", nothing)
}
