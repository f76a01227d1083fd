//go:build unix

package hostile_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/client"
)

// TestUnevenPartitions: a topic of events has 2 partitions in us and 3 in eu, then 5 in
// us. Both views have every record of every partition, native ones too, at their end; who
// has fewer partitions says so as a notice, and not in every second of its log. A topic of
// entities with 2 and 3 is held, and says so.
func TestUnevenPartitions(t *testing.T) {
	d := deploy(t, spec{pair: true, register: true, ownership: `version: 1
kind: OwnershipPolicy
domains:
  - {name: things, match: ["things.*"], kind: entity, mode: multi_writer, policy: lww}
  - {name: repos, match: ["github"], kind: events, mode: multi_writer, partitions: 2}
`})
	admin := func(r *region) *kadm.Client { return kadm.NewClient(r.kafka(t)) }
	for i, r := range d.regions() {
		for _, topic := range []string{"uneven", "things.a"} {
			if _, err := admin(r).CreateTopic(t.Context(), int32(2+i), 1, nil, topic); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := map[string]bool{}
	round := func(name string, partitions map[string]int32) {
		t.Helper()
		for i := range 15 {
			for _, r := range d.regions() {
				key := fmt.Sprint(name, r.name, i)
				r.mustStore(t, client.Write{Topic: "uneven", Key: key, Value: []byte("1"), Idem: key})
				want[key] = true
			}
		}
		for _, r := range d.regions() {
			for p := range partitions[r.name] {
				key := fmt.Sprint(name, r.name, "native", p)
				r.put(t, &kgo.Record{Topic: "uneven", Partition: p, Key: []byte(key), Value: []byte("1")})
				want[key] = true
			}
		}
		for _, r := range d.regions() {
			r.await(t, fmt.Sprintf("%s: %d records in %s", name, len(want), r.name), func(ctx context.Context) error {
				all, err := r.Records(ctx, "uneven", "merged")
				seen := map[string]int{}
				for _, x := range all {
					seen[x.Key.Text()]++
				}
				if err == nil && (len(all) != len(want) || len(seen) != len(want)) {
					err = fmt.Errorf("%d records, %d keys", len(all), len(seen))
				}
				return err
			})
		}
	}
	round("first", map[string]int32{"us": 2, "eu": 3})
	for _, r := range d.regions() {
		if w := r.awaitWarning(t, warning.PartitionsUneven, "uneven"); w.Severity != warning.Notice {
			t.Errorf("%s has severity %s", w, w.Severity)
		}
		r.awaitWarning(t, warning.PartitionsDiffer, "things.a")
		if o := r.command(t, "status", "--check"); o.code != 3 || !strings.Contains(o.out, "WARN PARTITIONS_DIFFER things.a") {
			t.Errorf("status --check of %s: %+v", r.name, o)
		}
		r.await(t, "the refusal", func(ctx context.Context) error {
			_, err := r.Try(ctx, client.Write{Topic: "things.a", Key: "k", Value: []byte("1")})
			if client.Code(err) == "PARTITION_HELD" && !client.MayRetry(err) {
				return nil
			}
			return fmt.Errorf("a write to a topic of entities is answered %v", err)
		})
		_, h, err := r.Do(t.Context(), http.MethodGet, "/v1/topics/things.a/records?view=merged", nil, nil)
		if lacks := h.Get("Geogate-Incomplete"); err != nil || !strings.HasPrefix(lacks, "things.a/0, things.a/1") {
			t.Errorf("a read of it in %s lacks %q: %v", r.name, lacks, err)
		}
	}
	if resp, err := admin(d.us).UpdatePartitions(t.Context(), 5, "uneven"); err != nil || resp.Error() != nil {
		t.Fatal(err, resp.Error())
	}
	round("grown", map[string]int32{"us": 5, "eu": 3})
	for _, r := range d.regions() {
		r.kill()
		r.start(t)
	}
	round("restarted", map[string]int32{"us": 5, "eu": 3})
	for _, r := range d.regions() {
		log, err := os.ReadFile(r.log)
		if n := strings.Count(string(log), "remote partition"); err != nil || n > 20 {
			t.Errorf("%d lines in the log of %s about partitions that cannot be read: %v", n, r.name, err)
		}
	}
}
