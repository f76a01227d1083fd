//go:build unix

package hostile_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/testbench/client"
)

// TestTimestampsThatNoClockShows: native producers write microseconds, nanoseconds, what
// lies an hour ahead, and nothing into the timestamps of a topic of events. All writes to
// all topics go on in both regions, also after a restart; both views have every record, with
// a time that can be read; and a token of a read with such records can be given to a write.
func TestTimestampsThatNoClockShows(t *testing.T) {
	const topic = "events"
	d := deploy(t, spec{pair: true, register: true, set: []string{"log.level=warn"}})
	for _, r := range d.regions() {
		_, err := kadm.NewClient(r.kafka(t)).CreateTopic(t.Context(), 1, 1, map[string]*string{
			"message.timestamp.after.max.ms": new(fmt.Sprint(int64(1) << 62)), "message.timestamp.before.max.ms": new(fmt.Sprint(int64(1) << 62)),
		}, topic)
		if err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	odd := []int64{now.UnixMicro(), now.UnixNano(), now.UnixNano() / 16, now.UnixMilli() + 3_600_000, now.Unix(), 0}
	for _, r := range d.regions() {
		// The Kafka client itself counts nanoseconds, in which these overflow.
		producer := txn.New(r.kafka(t), "app", txn.Options{})
		if err := producer.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, ms := range odd {
			_, err := producer.Commit(t.Context(), []txn.Record{{Topic: topic, Key: fmt.Appendf(nil, "%s %d", r.name, i), Value: []byte("1"), Timestamp: ms}})
			if err != nil {
				t.Fatalf("write timestamp %d: %v", ms, err)
			}
		}
	}
	want := len(odd) * 2
	round := func(when string) {
		t.Helper()
		for _, r := range d.regions() {
			for _, to := range []string{topic, "github", "flights"} {
				r.mustStore(t, client.Write{Topic: to, Key: r.name + when, Value: []byte(`1`), Idem: r.name + when + to})
			}
			want++
		}
		for _, r := range d.regions() {
			r.await(t, fmt.Sprintf("%s: a view of %d records in %s", when, want, r.name), func(ctx context.Context) error {
				all, err := r.Records(ctx, topic, "merged")
				if err == nil && len(all) != want {
					err = fmt.Errorf("%d records", len(all))
				}
				for _, x := range all {
					if _, perr := time.Parse(time.RFC3339, x.Timestamp); err == nil && perr != nil {
						err = perr
					}
				}
				return err
			})
			for _, other := range d.regions() {
				r.await(t, when+": the entity", func(ctx context.Context) error {
					_, h, err := r.Do(ctx, http.MethodGet, "/v1/topics/flights/entities/"+other.name+when, nil, nil)
					if err == nil {
						w := client.Write{Topic: "flights", Key: other.name + when, Value: []byte(`2`), Token: h.Get("Geogate-Token")}
						_, err = r.Try(ctx, w)
					}
					return err
				})
			}
		}
	}
	round("first")
	for _, r := range d.regions() {
		r.kill()
		r.start(t)
	}
	round("restarted")
}
