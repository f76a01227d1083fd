package docs_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/router"
)

// TestLinkFormats holds the golden bytes of docs/format/link.md against the
// codecs; where the document breaks them into parts, without the breaks.
func TestLinkFormats(t *testing.T) {
	doc := strings.ReplaceAll(read(t, "docs/format/link.md"), "` `", "")
	id := event.TopicID{0xaa, 15: 0xbb}
	pos := offsets.Position{Incarnation: 2, SourceCovered: 300, SourceEpoch: 4, Barrier: -1, Target: id, TargetCovered: 9, TargetEpoch: -1}
	runs := []offsets.Run{
		{Target: 258, Source: 300, Count: 5, Incarnation: 1, Barrier: 299, Barriers: []int64{7, 299}},
		{Target: 264, Source: 305, Count: 128, Incarnation: 1, Barrier: 299},
		{Target: 393, Source: 435, Count: 1, Incarnation: 1, Barrier: 433, Barriers: []int64{433}},
	}
	incident := replicate.Incident{
		Kind: replicate.RetentionGap, Source: id, Topic: "orders", Partition: 3, From: 10, Until: 15, At: time.UnixMilli(1_700_000_000_000),
	}
	for name, b := range map[string][]byte{
		"position key": offsets.AppendPositionKey(nil, id, 3), "position": pos.Append(nil),
		"runs key": offsets.AppendKey(nil, id, 3, 258), "runs": offsets.AppendRuns(nil, runs),
		"generation":   replicate.Generation{Number: 2, Shards: 4, Previous: 1, PreviousShards: 8, Cluster: "us", Fenced: true}.Append(nil),
		"incident key": incident.AppendKey(nil), "incident": incident.AppendValue(nil),
	} {
		if want := "`" + hex.EncodeToString(b) + "`"; !strings.Contains(doc, want) {
			t.Errorf("docs/format/link.md lacks the %s %s", name, want)
		}
	}
}

// mergedExample is the documented record of a merged topic.
func mergedExample() conflict.Merged {
	at := event.Dot{Region: 1, Partition: 3, Offset: 4711}
	return conflict.Merged{
		Siblings: 1, Rule: event.LWW, Corrects: true,
		Event: &event.Event{
			At: at, Stamped: true, Timestamp: 1_796_000_000_123, Key: []byte("DTW"), Value: []byte(`{"delay":66}`),
			Headers: []event.Header{{Key: "src", Value: []byte("hi")}},
			Envelope: event.Envelope{
				ID:     event.ID{0x01, 0xa2, 0x26, 0xbf, 0x49, 0x7b, 0x7c, 0x3e, 0x9a, 0x51, 0x6f, 0x0d, 0x2f, 0x1b, 0x7e, 0x10},
				Region: 1, Barrier: 300, Epoch: 17, Stamp: 0x01a226bf497b0007, Context: event.Vector{2: {Incarnation: 1, Next: 94}}, Op: event.Put,
			},
		},
	}
}

// TestMergedFormat holds the headers in docs/format/merged.md against the fold's.
func TestMergedFormat(t *testing.T) {
	doc := read(t, "docs/format/merged.md")
	table := func(hs []event.Header) (rows string) {
		for _, h := range hs {
			rows += fmt.Sprintf("| `%s` | `%x` |\n", h.Key, h.Value)
		}
		return rows
	}
	entity := mergedExample()
	fact := conflict.Merged{Event: &event.Event{At: event.Dot{Region: 2, Incarnation: 1, Partition: 3, Offset: 93}}}
	fact.Event.Stamp = hlc.FromMillis(5)
	back := conflict.Merged{Event: &event.Event{At: event.Dot{Region: 2, Partition: 3, Offset: 94}}, Corrects: true}
	for name, m := range map[string]conflict.Merged{"entity": entity, "event without a gateway": fact, "retraction": back} {
		if want := table(m.Headers()); !strings.Contains(doc, "|---|---|\n"+want+"\n") {
			t.Errorf("docs/format/merged.md lacks the headers of the %s:\n%s", name, want)
		}
	}
	if want := fmt.Sprintf("partition %d", router.ConflictsPartition("flights", 3)); !strings.Contains(doc, want) {
		t.Errorf("docs/format/merged.md lacks: flights/3 lies in %s", want)
	}
}
