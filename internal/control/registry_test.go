package control_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
)

// merging is a deployment whose only written topics are merged ones.
type merging struct{}

func (merging) CheckRecord(x control.Topic) error {
	if x.Name != x.Of+".merged" {
		return errors.New("another name")
	}
	return nil
}

func (merging) Reserved(name string) bool { return strings.HasSuffix(name, ".merged") }

// TestRegistryBelievesNoTombstone: what a topic is does not depend on the last record
// alone, which anybody with WRITE on the registry can add.
func TestRegistryBelievesNoTombstone(t *testing.T) {
	id, other := event.TopicID{1}, event.TopicID{2}
	record := control.Topic{Name: "t.merged", ID: id, Kind: control.KindDerived, Use: control.UseMerged, Of: "t"}
	unknown := control.Topic{Name: "t.merged"}
	wrongName := control.Topic{Name: "orders", ID: id, Kind: control.KindDerived, Use: control.UseMerged, Of: "t"}
	add := func(x control.Topic) [2][]byte { return [2][]byte{x.AppendKey(nil), x.AppendValue(nil)} }
	tombstone := func(name string) [2][]byte { return [2][]byte{[]byte(name), nil} }
	for _, c := range []struct {
		what    string
		records [][2][]byte
		name    string
		id      event.TopicID
		want    control.Topic
		ok      bool
	}{
		{"no record", nil, "t.merged", id, control.Topic{}, false},
		{"a record", [][2][]byte{add(record)}, "t.merged", id, record, true},
		{"a tombstone, the topic is there", [][2][]byte{add(record), tombstone("t.merged")}, "t.merged", id, record, true},
		{"a tombstone, another topic is there", [][2][]byte{add(record), tombstone("t.merged")}, "t.merged", other, control.Topic{}, false},
		{"compaction left the tombstone", [][2][]byte{tombstone("t.merged")}, "t.merged", id, unknown, true},
		{"a tombstone for a local name", [][2][]byte{tombstone("orders")}, "orders", id, control.Topic{}, false},
		{"garbage after the record", [][2][]byte{add(record), {[]byte("t.merged"), []byte{7}}}, "t.merged", id, record, true},
		{"only garbage is left", [][2][]byte{{[]byte("t.merged"), []byte{7}}}, "t.merged", id, unknown, true},
		{"garbage for a local name", [][2][]byte{{[]byte("orders"), []byte{7}}}, "orders", id, control.Topic{}, false},
		{"a record under the name of a local topic", [][2][]byte{add(wrongName)}, "orders", id, control.Topic{}, false},
		{"a record again after a tombstone", [][2][]byte{tombstone("t.merged"), add(record)}, "t.merged", other, record, true},
	} {
		g := control.NewRegistry(merging{})
		for _, r := range c.records {
			_ = g.Apply(r[0], r[1]) // what does not count is an error
		}
		if got, ok := g.Lookup(c.name, c.id); got != c.want || ok != c.ok {
			t.Errorf("%s: %+v, %t, want %+v, %t", c.what, got, ok, c.want, c.ok)
		}
	}
}
