package seats

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// A fetch gives the record of the own log that is asked for, and says so when
// there is none.
func TestFetch(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "flights"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	for _, key := range []string{"a", "b", "c"} {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "flights", Partition: 1, Key: []byte(key), Value: []byte("of " + key)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	f := topicFetcher{&fetcher{own: 1, topics: txn.NewTopics(cl), decoder: txn.NewDecoder(txn.Limits{})}, gateway.Topic{Name: "flights", Partitions: 2}, 1}
	at := event.Dot{Region: 1, Partition: 1, Offset: 1}
	ev, err := f.Fetch(t.Context(), at)
	if err != nil || ev.At != at || string(ev.Key) != "b" || string(ev.Value) != "of b" {
		t.Errorf("fetched %+v: %v", ev, err)
	}
	at.Offset = 9
	if ev, err := f.Fetch(t.Context(), at); !errors.Is(err, view.ErrGone) {
		t.Errorf("fetched %+v where nothing is: %v", ev, err)
	}
	if _, err := kadm.NewClient(cl).DeleteRecords(t.Context(), kadm.Offsets{"flights": {1: {Topic: "flights", Partition: 1, At: 2}}}); err != nil {
		t.Fatal(err)
	}
	at.Offset = 1
	if ev, err := f.Fetch(t.Context(), at); !errors.Is(err, view.ErrGone) {
		t.Errorf("fetched %+v that was deleted: %v", ev, err)
	}
}
