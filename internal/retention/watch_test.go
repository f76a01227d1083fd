package retention_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/retention"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
)

// TestWatch looks at a cluster whose settings change and whose records are deleted while
// somebody still has to read them.
func TestWatch(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "flights", "unread"), kfake.SeedTopics(1, "_geogate.state.flights"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(20*time.Millisecond),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	next, lost := int64(0), ""
	w := retention.New(retention.Config{
		Admin: admin, Server: "kafka:9092", Window: window, Logger: slog.New(slog.DiscardHandler),
		Lost: func(t retention.Topic, p int32, start int64) { lost += fmt.Sprintf("%s/%d %d", t.Name, p, start) },
		Topics: func() []retention.Topic {
			return []retention.Topic{
				{Name: "flights", Use: retention.Log},
				{Name: "unread", Use: retention.Log},
				{Name: "gone", Use: retention.Latest},
				{Name: "_geogate.state.flights", Use: retention.Latest},
			}
		},
		Needs: func() map[txn.TopicPartition][]retention.Need {
			need := []retention.Need{{Reader: "the fold", Next: next, Until: math.MaxInt64}}
			return map[txn.TopicPartition][]retention.Need{{Topic: "flights", Partition: 0}: need, {Topic: "flights", Partition: 1}: need}
		},
	})
	set := func(topic, key, value string) {
		t.Helper()
		done, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, topic)
		if err == nil {
			_, err = done.On(topic, func(r *kadm.AlterConfigsResponse) error { return r.Err })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(n int, at time.Time) {
		t.Helper()
		for range n {
			r := &kgo.Record{Topic: "flights", Value: make([]byte, 1000), Timestamp: at}
			if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	look := func(want ...string) {
		t.Helper()
		if err := w.LookOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		var list warning.List
		w.Warnings(&list)
		all := list.All()
		for i, x := range all {
			if i >= len(want) || !strings.HasPrefix(x.String(), want[i]) {
				t.Errorf("warning %q", x)
			}
		}
		if len(all) != len(want) {
			t.Errorf("%d warnings, want %q", len(all), want)
		}
	}
	margin := func(want float64, n int) {
		t.Helper()
		registry := prometheus.NewRegistry()
		registry.MustRegister(w)
		all, err := registry.Gather()
		if err != nil || len(all) != n || n > 0 && all[0].GetMetric()[0].GetGauge().GetValue() != want {
			t.Errorf("%v, %v", all, err)
		}
	}
	set("_geogate.state.flights", "cleanup.policy", "compact")
	set("unread", "retention.ms", "1") // nobody has to read it
	look()
	write(40, time.Now())
	look()
	margin(0, 0)
	set("flights", "retention.ms", "1000")
	set("_geogate.state.flights", "cleanup.policy", "compact,delete")
	look("RETENTION_SHORT _geogate.state.flights: cleanup.policy is compact,delete and must be compact, because what is old is deleted though it is the latest of its key: kafka-configs.sh --bootstrap-server kafka:9092 --alter --topic _geogate.state.flights --add-config cleanup.policy=compact",
		"RETENTION_SHORT flights: retention.ms is 1000 and must be at least 86400000, or -1, because the keys")
	set("_geogate.state.flights", "cleanup.policy", "compact")
	set("flights", "retention.ms", strconv.Itoa(int(window.Milliseconds())))
	look()
	margin(0, 1)
	set("flights", "retention.bytes", "30000") // 40 kB are within the window, and unread
	look("GAP_NEAR flights/0: the fold has read up to offset 0 of 40: what it has to read takes more than 80 % of retention.bytes",
		"RETENTION_SHORT flights/0: the records of the idempotency window (24h0m0s) take more than 80 %")
	b := &kgo.Record{Topic: "_geogate.state.flights", Key: []byte("k"), Value: []byte("v")}
	if err := client.ProduceSync(t.Context(), b).FirstErr(); err != nil {
		t.Fatal(err)
	}
	next = 38
	set("flights", "retention.bytes", "-1")
	look()
	margin(38, 1)
	trim := func(topic string, start int64) {
		t.Helper()
		var to kadm.Offsets
		to.AddOffset(topic, 0, start, -1)
		if done, err := admin.DeleteRecords(t.Context(), to); err != nil || done.Error() != nil {
			t.Fatal(err, done.Error())
		}
	}
	trim("flights", 38)
	look("GAP_NEAR flights/0: the fold has read up to offset 38 of 40: records are being deleted, and between the start of the log and that one are 0",
		"RETENTION_SHORT flights/0: records less than")
	next = 40
	trim("flights", 40)
	write(2, time.Now().Add(-20*time.Hour))
	look("RETENTION_SHORT flights/0: records less than")
	look("GAP_NEAR flights/0: the fold has read up to offset 40 of 42: the next record is older than 80 % of retention.ms; keep records until they are read: kafka-configs.sh --bootstrap-server kafka:9092 --alter --topic flights --add-config retention.ms=-1",
		"RETENTION_SHORT flights/0: records less than")
	trim("_geogate.state.flights", 1)
	lost = ""
	look("GAP_NEAR flights/0", "RETENTION_SHORT flights/0: records less than")
	if lost != "_geogate.state.flights/0 1" {
		t.Errorf("told of %q", lost)
	}
	// A cluster that does not answer takes nothing back.
	cluster.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := w.LookOnce(ctx); err == nil {
		t.Fatal("looked at a cluster that is closed")
	}
	var list warning.List
	if w.Warnings(&list); len(list.All()) != 2 {
		t.Errorf("%v", list.All())
	}
}

// TestLooksFollowTheWindow: a window that is shorter than the usual time between two looks
// would pass unseen.
func TestLooksFollowTheWindow(t *testing.T) {
	for window, want := range map[time.Duration]time.Duration{
		10 * time.Second: 1250 * time.Millisecond, 2 * time.Second: time.Second, 4 * time.Minute: 30 * time.Second, 24 * time.Hour: time.Minute,
	} {
		if got := retention.New(retention.Config{Window: window}).Every(); got != want {
			t.Errorf("with a window of %s looks are %s apart, want %s", window, got, want)
		}
	}
}
