package view

import (
	"os"
	"strings"
	"testing"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
)

// feedNames are the regions of the documented record.
type feedNames struct{}

func (feedNames) Name(r event.RegionID) string { return [...]string{1: "us", 2: "eu"}[r] }

func (feedNames) ID(name string) (event.RegionID, bool) {
	id, ok := map[string]event.RegionID{"us": 1, "eu": 2}[name]
	return id, ok
}

// TestFeedGolden holds the value of a conflict record against
// docs/format/merged.md.
func TestFeedGolden(t *testing.T) {
	doc, err := os.ReadFile("../../docs/format/merged.md")
	if err != nil {
		t.Fatal(err)
	}
	lost := conflict.Party{At: event.Dot{Region: 2, Partition: 3, Offset: 93}, Stamp: 0x01a226bf49700000}
	won := conflict.Party{
		At: event.Dot{Region: 1, Partition: 3, Offset: 4711}, Stamp: 0x01a226bf497b0007,
		ID: event.ID{0x01, 0xa2, 0x26, 0xbf, 0x49, 0x7b, 0x7c, 0x3e, 0x9a, 0x51, 0x6f, 0x0d, 0x2f, 0x1b, 0x7e, 0x10},
	}
	for _, c := range []conflict.Conflict{
		{Key: []byte("DTW"), Reason: conflict.Concurrent, Rule: event.LWW, Lost: lost, Won: won},
		{Key: nil, Reason: conflict.Duplicate, Lost: lost, Won: won},
		{Key: []byte{0xff}, Reason: conflict.Revoked, Rule: event.Keep, Lost: won, Won: lost},
	} {
		value, err := appendConflict("flights", &c, feedNames{})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(doc), "\n"+string(value)+"\n") {
			t.Errorf("docs/format/merged.md lacks\n%s", value)
		}
	}
}
