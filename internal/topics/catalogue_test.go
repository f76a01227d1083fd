package topics_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/topics"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

const policy = `version: 1
kind: OwnershipPolicy
domains: [{name: air, match: [flights], kind: entity, mode: multi_writer, policy: lww, partitions: 2}]
`

// existing is a topic that is there before the catalogue is.
type existing struct {
	name       string
	partitions int32
	configs    map[string]string
}

// catalogue makes one over a cluster of its own, with its internal topics.
func catalogue(t *testing.T, before ...existing) (*topics.Catalogue, *kadm.Client) {
	t.Helper()
	return open(t, newCluster(t, before...))
}

func newCluster(t *testing.T, before ...existing) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	for _, x := range before {
		if err := cluster.CreateTopic(x.name, x.partitions, x.configs); err != nil {
			t.Fatal(err)
		}
	}
	return cluster
}

// open makes another catalogue over a cluster, as a process that starts does.
func open(t *testing.T, cluster *kfake.Cluster) (*topics.Catalogue, *kadm.Client) {
	t.Helper()
	return openAt(t, cluster.ListenAddrs())
}

// openAt is open for a cluster of any kind.
func openAt(t *testing.T, seeds []string) (*topics.Catalogue, *kadm.Client) {
	t.Helper()
	opts := []kgo.Opt{kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(20 * time.Millisecond)}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	topology, err := router.NewTopology(router.Region{Name: "us", ID: 1}, router.Region{Name: "eu", ID: 2})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := ownership.ParsePolicy("policy", []byte(policy))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	follower, err := control.New(control.Config{Region: 1, Regions: map[event.RegionID]string{1: "us", 2: "eu"}, Names: topology, Opts: opts, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- follower.Run(t.Context()) }()
	t.Cleanup(func() { <-ended }) // the test's context has ended before
	c := topics.New(topics.Config{
		Region: "us", ID: 1, Topology: topology, Policy: parsed, Client: client, Control: follower, Window: 24 * time.Hour, Logger: log,
	})
	if err := c.PrepareInternal(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-follower.Ready()
	return c, kadm.NewClient(client)
}

func TestDeclaredTopics(t *testing.T) {
	c, admin := catalogue(t)
	for range 2 { // it makes them, then finds them
		if err := c.PrepareDeclared(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	all, err := admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, cleanup := range map[string]string{"flights": "delete", "flights.merged": "compact", "_geogate.state.flights": "compact"} {
		if n := len(all[name].Partitions); n != 2 {
			t.Errorf("topic %s has %d partitions", name, n)
		}
		configs, err := admin.DescribeTopicConfigs(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range configs[0].Configs {
			if kv.Key == "cleanup.policy" && kv.MaybeValue() != cleanup {
				t.Errorf("topic %s has cleanup.policy %s, want %s", name, kv.MaybeValue(), cleanup)
			}
		}
	}
	if x, err := c.Topic(t.Context(), "flights"); err != nil || x.Partitions != 2 || x.Domain.Name != "air" {
		t.Errorf("the local topic is %+v, %v", x, err)
	}
	var unknown *gateway.UnknownTopic
	if _, err := c.Topic(t.Context(), "flights.merged"); !errors.As(err, &unknown) || !strings.Contains(unknown.Detail, "read flights with view=merged") {
		t.Errorf("the merged topic is %v", err)
	}
	if _, err := c.Topic(t.Context(), "nothing"); !errors.Is(err, gateway.ErrTopicUnknown) {
		t.Errorf("a topic that is not there is %v", err)
	}
}

// TestRefusals wants a topic that is not as it must be left as it is, and the error
// to be one that only an operator can mend.
func TestRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		before existing
		want   string
	}{
		"partitions": {existing{"flights", 3, nil}, "it has 3 partitions and must have 2"},
		"compacted":  {existing{"flights", 2, map[string]string{"cleanup.policy": "compact"}}, "cleanup.policy is compact and must be delete"},
		"retention":  {existing{"flights", 2, map[string]string{"retention.ms": "1000"}}, "below the idempotency window"},
		"blocked":    {existing{"flights.merged", 1, nil}, "a local topic flights.merged exists already"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := catalogue(t, tt.before)
			err := c.PrepareDeclared(t.Context())
			refusal := topics.Refusal(err)
			if !errors.Is(refusal, topics.ErrRefused) || !strings.Contains(refusal.Error(), tt.want) {
				t.Errorf("got %v, refusal %v; want %s", err, refusal, tt.want)
			}
		})
	}
	if refusal := topics.Refusal(errors.New("the broker is away")); refusal != nil {
		t.Errorf("trying again is not refused: %v", refusal)
	}
}

// TestForgedRegistryRecords: whoever can write to the registry makes no topic of
// geogate's local, and no local topic geogate's; a restart finds its topics again and
// writes the records that were deleted.
func TestForgedRegistryRecords(t *testing.T) {
	cluster := newCluster(t, existing{"eu.orders", 1, nil}, existing{"us.orders", 1, nil})
	c, _ := open(t, cluster)
	if err := c.PrepareDeclared(t.Context()); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	forged := control.Topic{Name: "flights", Kind: control.KindDerived, Use: control.UseMerged, Of: "us.orders"}
	if err := client.ProduceSync(t.Context(),
		&kgo.Record{Topic: control.TopicTopics, Key: []byte("flights.merged")},
		&kgo.Record{Topic: control.TopicTopics, Key: []byte("_geogate.state.flights")},
		&kgo.Record{Topic: control.TopicTopics, Key: forged.AppendKey(nil), Value: forged.AppendValue(nil)},
	).FirstErr(); err != nil {
		t.Fatal(err)
	}
	check := func(c *topics.Catalogue) {
		t.Helper()
		var unknown *gateway.UnknownTopic
		if x, err := c.Topic(t.Context(), "flights.merged"); !errors.As(err, &unknown) || !strings.Contains(unknown.Detail, "merged view of flights") {
			t.Errorf("the merged topic is %+v, %v", x, err)
		}
		if x, err := c.Topic(t.Context(), "eu.orders"); !errors.As(err, &unknown) || !strings.Contains(unknown.Detail, "no record that says what it is") {
			t.Errorf("a topic that is called like a remote one is %+v, %v", x, err)
		}
		for _, name := range []string{"flights", "us.orders"} {
			if _, err := c.Topic(t.Context(), name); err != nil {
				t.Errorf("local topic %s: %v", name, err)
			}
		}
	}
	check(c)
	again, _ := open(t, cluster)
	check(again)
	if err := again.PrepareDeclared(t.Context()); err != nil {
		t.Fatalf("restart: %v", err)
	}
	check(again)
}

// TestBlockedTopicsStopOnlyThemselves: a topic of which nothing can be derived says why,
// in the error, the list and the warnings, and no other topic is held up.
func TestBlockedTopicsStopOnlyThemselves(t *testing.T) {
	long := strings.Repeat("n", 240) // its state topic's name is too long
	c, _ := catalogue(t, existing{long, 1, nil}, existing{"taken", 1, nil}, existing{"taken.merged", 1, nil}, existing{"free", 1, nil})
	for range 2 { // what the first attempt has left behind does not make it geogate's
		for name, why := range map[string]string{long: "at most 249", "taken": "a local topic taken.merged exists already", "free": ""} {
			topic, err := c.Topic(t.Context(), name)
			if err == nil {
				err = c.Derive(t.Context(), topic)
			}
			if blocked := errors.Is(err, gateway.ErrTopicBlocked); blocked != (why != "") || blocked && !strings.Contains(err.Error(), why) {
				t.Errorf("%.20s: %v, want %q", name, err, why)
			}
		}
		if err := c.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := c.Entries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if blocked := e.Name == long || e.Name == "taken"; blocked != (e.Blocked != "") {
			t.Errorf("%.20s is listed with %q", e.Name, e.Blocked)
		}
	}
	var warnings warning.List
	c.Warnings(&warnings)
	if n := warnings.Count()[warning.TopicBlocked]; n != 2 {
		t.Errorf("%d warnings: %v", n, warnings.All())
	}
}

// TestDerivedTopicsTakeWhatTheirTopicTakes: limits and retention follow the topic's; a
// derived topic that exists is given the limits, and its retention is only reported.
func TestDerivedTopicsTakeWhatTheirTopicTakes(t *testing.T) {
	cluster := newCluster(t, existing{"large", 1, map[string]string{"max.message.bytes": "5000000", "retention.ms": "-1"}})
	settings := func(admin *kadm.Client, name string) map[string]string {
		t.Helper()
		described, err := admin.DescribeTopicConfigs(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, kv := range described[0].Configs {
			out[kv.Key] = kv.MaybeValue()
		}
		return out
	}
	derive := func() (*topics.Catalogue, *kadm.Client) {
		t.Helper()
		c, admin := open(t, cluster)
		topic, err := c.Topic(t.Context(), "large")
		if err == nil {
			err = c.Derive(t.Context(), topic)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c, admin
	}
	check := func(admin *kadm.Client, retention string) {
		t.Helper()
		for name, want := range map[string]string{
			"large.merged":         "max.message.bytes 5065536 retention.ms " + retention,
			"_geogate.state.large": "max.message.bytes 10065536 retention.ms " + settings(admin, "_geogate.topics")["retention.ms"],
		} {
			have := settings(admin, name)
			if got := "max.message.bytes " + have["max.message.bytes"] + " retention.ms " + have["retention.ms"]; got != want {
				t.Errorf("%s has %s, want %s", name, got, want)
			}
		}
	}
	_, admin := derive()
	check(admin, "-1")
	small, week := "1000000", "604800000"
	if _, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &small}, {Op: kadm.SetConfig, Name: "retention.ms", Value: &week},
	}, "large.merged"); err != nil {
		t.Fatal(err)
	}
	c, admin := derive()
	check(admin, week)
	if x, err := c.Topic(t.Context(), "large"); err != nil || x.Limit != (gateway.RecordLimit{Bytes: 5_000_000 - 1<<10, Topic: "large"}) {
		t.Errorf("limit %+v: %v", x.Limit, err)
	}
	var warnings warning.List
	c.Warnings(&warnings)
	if all := warnings.All(); len(all) != 1 || all[0].Code != warning.SettingsDiffer || !strings.Contains(all[0].Detail, "retention.ms is 604800000, of the topic itself -1") {
		t.Errorf("warnings %v", all)
	}
}

// TestLimitsFollowTheTopic: when the topic's limit changes, what is derived from it and what
// is accepted follow; where a derived topic may not be changed, no more is accepted than it
// holds, and the warning says so.
func TestLimitsFollowTheTopic(t *testing.T) {
	cluster := newCluster(t, existing{"large", 1, nil})
	c, admin := open(t, cluster)
	topic, err := c.Topic(t.Context(), "large")
	if err != nil || topic.Limit != (gateway.RecordLimit{}) {
		t.Fatalf("topic %+v: %v", topic, err)
	}
	if err := c.Derive(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	limit := func(want gateway.RecordLimit) {
		t.Helper()
		if x, err := c.Topic(t.Context(), "large"); err != nil || x.Limit != want {
			t.Errorf("limit %+v, want %+v: %v", x.Limit, want, err)
		}
	}
	set := func(name, bytes string) {
		t.Helper()
		if _, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &bytes}}, name); err != nil {
			t.Fatal(err)
		}
	}
	follow := func(want bool) {
		t.Helper()
		for _, changed := range []bool{want, false} { // nothing is left to change
			if got, err := c.Widen(t.Context(), topic); err != nil || got != changed {
				t.Errorf("changed %v: %v", got, err)
			}
		}
	}
	limit(gateway.RecordLimit{Bytes: 1_048_588 - 1<<10, Topic: "large"})
	set("large", "3000000")
	follow(true)
	limit(gateway.RecordLimit{Bytes: 3_000_000 - 1<<10, Topic: "large"})
	set("large", "60000")
	if err := c.FollowSettings(t.Context()); err != nil {
		t.Fatal(err)
	}
	limit(gateway.RecordLimit{Bytes: 60_000 - 1<<10, Topic: "large"})

	set("large", "3000000")
	set("large.merged", "500000")
	denied := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.IncrementalAlterConfigs}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	if changed, err := c.Widen(t.Context(), topic); changed || !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("changed %v: %v", changed, err)
	}
	limit(gateway.RecordLimit{Bytes: 500_000 - 8<<10, Topic: "large.merged"})
	var warnings warning.List
	c.Warnings(&warnings)
	if all := warnings.All(); len(all) != 1 || all[0].Code != warning.SettingsDiffer || all[0].Subject != "large.merged" {
		t.Errorf("warnings %v", all)
	}
	denied.Remove()
	follow(true)
	limit(gateway.RecordLimit{Bytes: 3_000_000 - 1<<10, Topic: "large"})
}
