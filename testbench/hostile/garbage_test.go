//go:build unix

package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/client"
)

// garbage are keys and values of which no reader can make anything: of all lengths that
// keys have, with the type bytes that are known.
func garbage() (out [][2][]byte) {
	rnd := rand.New(rand.NewPCG(1, 2))
	bytesOf := func(n int, first byte) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		if n > 0 {
			b[0] = first
		}
		return b
	}
	for n := range 40 {
		out = append(out, [2][]byte{bytesOf(n, byte(1+n%5)), bytesOf(n%7, 1)})
	}
	for first := range byte(8) {
		out = append(out, [2][]byte{{first, 0}, []byte("x")}, [2][]byte{{first}, nil})
	}
	return append(out, [2][]byte{nil, []byte("x")}, [2][]byte{nil, nil}, [2][]byte{[]byte("generation"), []byte("x")}, [2][]byte{[]byte("incident"), nil})
}

// spoil puts garbage into every partition of every internal topic of a region's Kafka, and
// gives the topics.
func (r *region) spoil(t *testing.T) (topics []string) {
	t.Helper()
	cl := r.kafka(t)
	all, err := kadm.NewClient(cl).ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var records []*kgo.Record
	for _, topic := range all.Sorted() {
		if !strings.HasPrefix(topic.Topic, "_geogate.") {
			continue
		}
		topics = append(topics, topic.Topic)
		for p := range topic.Partitions {
			for _, g := range garbage() {
				records = append(records, &kgo.Record{Topic: topic.Topic, Partition: p, Key: g[0], Value: g[1]})
			}
		}
	}
	// Apache Kafka takes no null keys in compacted topics, and refuses the whole batch.
	keyed, null := []*kgo.Record{}, []*kgo.Record{}
	for _, rec := range records {
		if rec.Key == nil {
			null = append(null, rec)
		} else {
			keyed = append(keyed, rec)
		}
	}
	if err := cl.ProduceSync(t.Context(), keyed...).FirstErr(); err != nil {
		t.Fatalf("spoil topics of %s: %v", r.name, err)
	}
	for _, res := range cl.ProduceSync(t.Context(), null...) {
		if res.Err != nil && !errors.Is(res.Err, kerr.InvalidRecord) {
			t.Fatalf("spoil %s of %s: %v", res.Record.Topic, r.name, res.Err)
		}
	}
	return topics
}

// TestGarbageInEveryInternalTopic: a neighbour with write access to internal topics puts
// into them what is no record. Both regions go on while they run, and after a kill without
// their stores; nothing that was answered is lost; status names what was passed over.
func TestGarbageInEveryInternalTopic(t *testing.T) {
	d := deploy(t, spec{pair: true, register: true, residency: `version: 1
kind: ResidencyPolicy
name: all
revision: 1
default: deny
rules:
  - {id: all, effect: allow, topics: ["*"], from: ["*"], to: ["*"]}
`})
	var want []string
	write := func(round string) {
		t.Helper()
		for _, r := range d.regions() {
			for i := range 8 {
				id := fmt.Sprintf("%s %s %d", r.name, round, i)
				r.mustStore(t, client.Write{Topic: "github", Key: id, Value: []byte(`1`), Idem: id})
				r.mustStore(t, client.Write{Topic: "flights", Key: id, Value: []byte(`1`), Idem: id})
				want = append(want, id)
			}
		}
	}
	settled := func(when string) {
		t.Helper()
		for _, r := range d.regions() {
			r.await(t, when+", everything in "+r.name, func(ctx context.Context) error { return r.shows(ctx, want) })
		}
	}
	write("before")
	settled("before")
	topics := make(map[string][]string)
	for _, r := range d.regions() {
		topics[r.name] = r.spoil(t)
	}
	write("meanwhile")
	settled("while they run")
	for _, r := range d.regions() {
		r.mustRun(t)
		r.kill()
		if err := os.RemoveAll(filepath.Join(d.dir, r.name, "store")); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range d.regions() {
		r.launch(t)
	}
	for _, r := range d.regions() {
		r.awaitReady(t)
	}
	write("after")
	settled("after a kill without stores")
	for _, r := range d.regions() {
		if _, err := r.Conflicts(t.Context(), "flights"); err != nil {
			t.Errorf("conflicts of %s: %v", r.name, err)
		}
		r.names(t, topics[r.name])
	}
}

// shows tells whether the region shows all records of events, and all entities.
func (r *region) shows(ctx context.Context, want []string) error {
	records, err := r.Records(ctx, "github", "merged")
	if err != nil {
		return err
	}
	seen := map[string]int{}
	for _, x := range records {
		seen[x.Key.Text()]++
	}
	for _, id := range want {
		if seen[id] != 1 {
			return fmt.Errorf("%q is shown %d times among %d records", id, seen[id], len(records))
		}
		if _, err := r.Entity(ctx, "flights", id, "", ""); err != nil {
			return fmt.Errorf("entity %q: %w", id, err)
		}
	}
	return nil
}

// names wants the status to name the internal topics that have garbage, with an offset, and
// nothing to be stopped by it.
func (r *region) names(t *testing.T, topics []string) {
	t.Helper()
	unread := []string{"_geogate.audit", "_geogate.owners"} // which are for people
	s, err := r.status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range topics {
		at := slices.IndexFunc(s.Warnings, func(w warning.Warning) bool {
			return w.Code == warning.MalformedRecord && strings.HasPrefix(w.Subject, topic+"/") && strings.Contains(w.Detail, "the latest at offset ")
		})
		if at < 0 && !slices.Contains(unread, topic) {
			t.Errorf("%s does not name garbage in %s", r.name, topic)
		}
	}
	for _, w := range s.Warnings {
		switch w.Code {
		case warning.Defect, warning.PartitionHeld, warning.PartitionNotReady, warning.FoldFailing, warning.LinkFailed, warning.LinkParked:
			t.Errorf("%s: %s", r.name, w)
		}
	}
	if o := r.command(t, "status", "--check"); o.code != 3 {
		t.Errorf("status --check of %s ends with %d", r.name, o.code)
	}
}
