package keyset_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/keyset"
)

// A set never says of a key that was stored before, or noted, that it is new, whether it has
// read all of the store or not; when it has, it says so of nearly all others.
func TestSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []event.IdempotencyKey {
		keys := make([]event.IdempotencyKey, n)
		for i := range keys {
			for j := range keys[i] {
				keys[i][j] = byte(rng.Uint32())
			}
		}
		slices.SortFunc(keys, func(a, b event.IdempotencyKey) int { return slices.Compare(a[:], b[:]) })
		return keys
	}
	stored, others := random(10_000), random(10_000)
	broken := errors.New("broken")
	failing := true
	list := func(from event.IdempotencyKey, n int) ([]event.IdempotencyKey, bool, error) {
		if failing {
			return nil, false, broken
		}
		at, _ := slices.BinarySearchFunc(stored, from, func(a, b event.IdempotencyKey) int { return slices.Compare(a[:], b[:]) })
		end := min(at+n, len(stored))
		return stored[at:end], end < len(stored), nil
	}
	var owner struct{ pointer *int }
	s := keyset.New(&owner)
	noted := random(3000)
	news := 0
	for i, k := range noted {
		if i%2 == 0 {
			s.Add(k)
		} else if err := s.Note([]event.IdempotencyKey{k}, list); failing != errors.Is(err, broken) {
			t.Fatal(err)
		}
		failing = i < 1000
		if i%500 != 499 {
			continue
		}
		for _, keys := range [][]event.IdempotencyKey{stored, noted[:i+1]} {
			if at := s.Maybe(keys); len(at) != len(keys) {
				t.Fatalf("%d of %d keys that are stored are said to be new", len(keys)-len(at), len(keys))
			}
			if !s.Has(keys[len(keys)/2]) {
				t.Fatal("a key that is stored is said to be new")
			}
		}
		news = len(others) - len(s.Maybe(others))
	}
	if news < len(others)*95/100 {
		t.Errorf("%d of %d new keys are known to be new", news, len(others))
	}
}
