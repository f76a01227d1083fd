package ownership

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/event"
)

// wide are the ends of the logs of many topics.
func wide(topics, partitions int, at int64) []Extent {
	out := make([]Extent, topics)
	for i := range out {
		out[i] = Extent{Topic: fmt.Sprintf("a-topic-with-an-ordinary-name-%05d", i), Offsets: make([]int64, partitions)}
		for p := range out[i].Offsets {
			out[i].Offsets[p] = at + int64(i*p)
		}
	}
	return out
}

// TestRecordStaysShort: a thousand fences of a unit of ten thousand topics leave a record
// that a register takes, which is 1 MiB, and no part of what it names is longer.
func TestRecordStaysShort(t *testing.T) {
	if n := len(encode(UnitRecord{Epochs: []Tenure{{Start: wide(10_000, 6, 1<<40)}}})); n < 1<<20 {
		t.Fatalf("a start inside the record takes %d bytes, which would do", n)
	}
	u := UnitRecord{Unit: "air/us", Epoch: 17, Owner: "us", Epochs: []Tenure{{Epoch: 17, Owner: "us"}}}
	ends := wide(10_000, 6, 1<<40)
	for fence := range 1000 {
		// The offsets of other fences are others; the records of one are looked at.
		if fence > 1 {
			ref := *u.Epochs[len(u.Epochs)-1].CutAt
			last := &u.Epochs[len(u.Epochs)-1]
			u.Epoch += 16
			last.Ended, last.CutAt = true, &ref
			u.Epochs = append(u.Epochs, Tenure{Epoch: u.Epoch, Owner: "us", Ended: true, StartAt: &ref, CutAt: &ref})
			continue
		}
		last := &u.Epochs[len(u.Epochs)-1]
		last.Ended, last.Cut = true, ends
		u.Epoch += 16
		u.Epochs = append(u.Epochs, Tenure{Epoch: u.Epoch, Owner: "us", Start: ends})
		for _, r := range outside(&u, inlineExtents) {
			if n := len(encode(r)); n > 2*partBytes {
				t.Fatalf("part %d has %d bytes", r.Part, n)
			}
		}
		if fence == 1 {
			u.Epochs[len(u.Epochs)-1].CutAt = u.Epochs[len(u.Epochs)-1].StartAt
		}
	}
	if n := len(encode(u)); n > 512<<10 || len(u.Epochs) < 1000 {
		t.Errorf("after %d epochs the record has %d bytes", len(u.Epochs), n)
	}
}

// TestExtentsOutside: what is read of a record is what was put outside of it, whatever the
// order of parts and however often they come; and a record is not whole before that.
func TestExtentsOutside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := UnitRecord{Unit: "air/us", Epoch: 33, State: UnitFenced}
		for e := range rapid.IntRange(1, 3).Draw(t, "epochs") {
			x := Tenure{Epoch: event.Epoch(17 + 16*e), Owner: "us", Ended: true}
			for _, to := range []*[]Extent{&x.Start, &x.Cut} {
				if topics := rapid.IntRange(0, 40).Draw(t, "topics"); topics > 0 {
					*to = wide(topics, rapid.IntRange(1, 3).Draw(t, "partitions"), rapid.Int64Range(0, 9).Draw(t, "at"))
				}
			}
			u.Epochs = append(u.Epochs, x)
		}
		want := u
		want.Epochs = slices.Clone(u.Epochs)
		parts := outside(&u, rapid.SampledFrom([]int{0, 100, 3000, 1 << 20}).Draw(t, "inline"))
		got, err := DecodeUnit(encode(u))
		if err != nil {
			t.Fatal(err)
		}
		if got.Resolved() != (len(parts) == 0) || (got.Version == refsVersion) != (len(parts) > 0) {
			t.Fatalf("version %d with %d parts outside, resolved %t", got.Version, len(parts), got.Resolved())
		}
		var sets ExtentSets
		for _, i := range rapid.Permutation(append(indices(len(parts)), indices(len(parts))...)).Draw(t, "order") {
			r, err := DecodeExtents(encode(parts[i]))
			if err != nil {
				t.Fatal(err)
			}
			sets.Take(&r)
		}
		sets.prune(&got)
		sets.Resolve(&got)
		if !got.Resolved() || !sameHistory(got.Epochs, want.Epochs) {
			t.Fatalf("read %+v, want %+v", got.Epochs, want.Epochs)
		}
		again := got
		if more := outside(&again, 0); len(parts) > 0 && string(encode(again)) == string(encode(got)) && len(more) > 0 {
			t.Fatal("parts of a record that has not changed")
		}
	})
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// TestForgedParts: parts that are not of what their name says make nothing whole.
func TestForgedParts(t *testing.T) {
	parts := split("air/us", 33, wide(5000, 6, 1<<40))
	if len(parts) < 2 {
		t.Fatal("one part")
	}
	var sets ExtentSets
	ref := &ExtentsRef{Sum: parts[0].Sum, Parts: len(parts)}
	forged := parts[1]
	forged.Extents = wide(1, 1, 7)
	sets.Take(&forged)
	for i := range parts {
		if i != 1 && sets.Take(&parts[i]) {
			t.Fatal("a forged part makes a whole")
		}
	}
	if sets.find("air/us", ref) != nil {
		t.Fatal("forged extents are found")
	}
	for i := range parts {
		sets.Take(&parts[i])
	}
	if !sameExtents(sets.find("air/us", ref), wide(5000, 6, 1<<40)) {
		t.Fatal("the true parts, coming later, are not found")
	}
	for _, bad := range []string{`{"v":1,"unit":"a","sum":"s","part":1,"parts":1}`, `{"v":1,"unit":"a","sum":"s","part":-1,"parts":1}`, `{"v":1,"unit":"a","sum":"s","parts":99999}`, `{"v":2,"unit":"a","sum":"s","parts":1}`, `{}`} {
		if _, err := DecodeExtents([]byte(bad)); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// FuzzExtents: whatever a register holds under the subjects of extents, a reader takes it
// or refuses it, and never finds anything else than what a name says.
func FuzzExtents(f *testing.F) {
	for _, r := range split("air/us", 33, wide(3, 2, 5)) {
		f.Add(encode(r))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeExtents(data)
		if err != nil {
			return
		}
		var sets ExtentSets
		sets.Take(&r)
		if found := sets.find(r.Unit, &ExtentsRef{Sum: r.Sum, Parts: r.Parts}); found != nil && sumOf(found) != r.Sum {
			t.Fatalf("%s finds what is named %s", r.Sum, sumOf(found))
		}
	})
}
