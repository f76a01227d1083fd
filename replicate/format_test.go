package replicate

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// The bytes of docs/format/link.md.
func TestGolden(t *testing.T) {
	g := Generation{Number: 2, Shards: 4, Previous: 1, PreviousShards: 8, Cluster: "us", Fenced: true}
	if got := hex.EncodeToString(g.Append(nil)); got != "010204010802757301" {
		t.Fatalf("generation %s", got)
	}
	if back, err := ParseGeneration(g.Append(nil)); err != nil || back != g {
		t.Fatalf("%+v, %v", back, err)
	}
	x := Incident{
		Kind: RetentionGap, Source: event.TopicID{0xaa, 15: 0xbb}, Topic: "orders", Partition: 3, From: 10, Until: 15,
		At: time.UnixMilli(1_700_000_000_000).UTC(),
	}
	if got := hex.EncodeToString(x.AppendKey(nil)); got != "696e636964656e74aa0000000000000000000000000000bb0000000301000000000000000a" {
		t.Fatalf("incident key %s", got)
	}
	if got := hex.EncodeToString(x.AppendValue(nil)); got != "01066f72646572730f0000018bcfe5680000" {
		t.Fatalf("incident value %s", got)
	}
	if back, ok, err := ParseIncident(x.AppendKey(nil), x.AppendValue(nil)); err != nil || !ok || back != x {
		t.Fatalf("%+v, %v", back, err)
	}
	if id := ShardID("us", "eu", 2, 3) + " " + GenerationID("us", "eu"); id != "geogate.link.us.eu.2.3 geogate.link.us.eu.generation" {
		t.Fatal(id)
	}
}

func TestFormatsRefuseWhatTheyDoNotKnow(t *testing.T) {
	good := Generation{Number: 1, Shards: 4, Cluster: "us"}.Append(nil)
	for i := range good {
		if _, err := ParseGeneration(good[:i]); !errors.Is(err, event.ErrMalformed) {
			t.Fatalf("%d bytes: %v", i, err)
		}
	}
	for _, bad := range [][]byte{
		append(bytes.Clone(good), 0), append([]byte{2}, good[1:]...), append(bytes.Clone(good[:len(good)-1]), 2),
		Generation{Number: 0, Shards: 4}.Append(nil), Generation{Number: 1, Shards: 33}.Append(nil),
	} {
		if _, err := ParseGeneration(bad); !errors.Is(err, event.ErrMalformed) {
			t.Fatalf("%x: %v", bad, err)
		}
	}
	x := Incident{Kind: Refused, Topic: "t", Detail: string(make([]byte, 5000))}
	if back, ok, err := ParseIncident(x.AppendKey(nil), x.AppendValue(nil)); err != nil || !ok || len(back.Detail) != maxText {
		t.Fatalf("a long detail: %d, %v", len(back.Detail), err)
	}
	if _, ok, err := ParseIncident([]byte(GenerationKey), good); ok || err != nil {
		t.Fatalf("another kind of record: %v, %v", ok, err)
	}
}
