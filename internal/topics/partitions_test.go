package topics_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

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
)

// copied makes a topic what a link has made: the copy of a topic of eu.
func copied(t *testing.T, cluster *kfake.Cluster, of string, partitions int32) {
	t.Helper()
	name := "eu." + of
	if err := cluster.CreateTopic(name, partitions, nil); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	all, err := kadm.NewClient(client).ListTopics(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	x := control.Topic{Name: name, ID: event.TopicID(all[name].ID), Kind: control.KindRemote, Origin: 2, Link: "eu-us", Source: of, SourceID: event.TopicID{9}}
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: control.TopicTopics, Key: x.AppendKey(nil), Value: x.AppendValue(nil)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// topicOf lists the topics afresh and gives one.
func topicOf(t *testing.T, c *topics.Catalogue, name string) gateway.Topic {
	t.Helper()
	if err := c.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	topic, err := c.Topic(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// numbers are a topic's: over which keys are spread, of the log, of the view.
func numbers(t gateway.Topic) [3]int32 {
	return [3]int32{t.Partitions, t.LocalPartitions(), t.ViewPartitions()}
}

// has checks how many partitions topics have.
func has(t *testing.T, admin *kadm.Client, partitions int, names ...string) {
	t.Helper()
	all, err := admin.ListTopics(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if n := len(all[name].Partitions); n != partitions {
			t.Errorf("%s has %d partitions, want %d", name, n, partitions)
		}
	}
}

// TestViewSpansAllRegions: the view of an events topic has the partitions of the log that
// has most, and what is derived grows with it. Keys stay where they were, also for the
// next process, until the ownership policy says otherwise.
func TestViewSpansAllRegions(t *testing.T) {
	cluster := newCluster(t, existing{"repos", 2, nil})
	c, admin := open(t, cluster)
	topic := topicOf(t, c, "repos")
	if got := numbers(topic); got != [3]int32{2, 2, 2} {
		t.Fatalf("alone: %v", got)
	}
	if err := c.Derive(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	has(t, admin, 2, "repos.merged", "_geogate.state.repos")

	copied(t, cluster, "repos", 4)
	c, admin = open(t, cluster) // whose follower has read the registry
	topic = topicOf(t, c, "repos")
	if got := numbers(topic); got != [3]int32{2, 2, 4} || topic.Held != "" {
		t.Fatalf("beside a copy of 4: %v, held %q", got, topic.Held)
	}
	if err := c.Derive(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	has(t, admin, 4, "repos.merged", "_geogate.state.repos")
	has(t, admin, 2, "repos")

	if resp, err := admin.UpdatePartitions(t.Context(), 6, "repos"); err != nil || resp.Error() != nil {
		t.Fatal(err, resp.Error())
	}
	for range 2 { // the second is another process
		topic = topicOf(t, c, "repos")
		if got := numbers(topic); got != [3]int32{2, 6, 6} {
			t.Fatalf("grown: %v", got)
		}
		if err := c.Derive(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
		has(t, admin, 6, "repos.merged", "_geogate.state.repos")
		var out warning.List
		c.Warnings(&out)
		all := out.All()
		if len(all) != 2 || all[0].Code != warning.PartitionsUneven || all[1].Code != warning.PartitionsUneven ||
			!strings.Contains(all[0].Detail, "6 partitions in us and 4 in eu") || !strings.Contains(all[1].Detail, "over the first 2") || all[0].Severity != warning.Notice {
			t.Errorf("warnings %v", all)
		}
		c, admin = open(t, cluster)
	}
}

// TestPartitionsThatCannotBeAdded: what the cluster refuses keeps the new partitions out
// of the view, and only those; it is said, and tried again.
func TestPartitionsThatCannotBeAdded(t *testing.T) {
	cluster := newCluster(t, existing{"repos", 2, nil})
	c, _ := open(t, cluster)
	if err := c.Derive(t.Context(), topicOf(t, c, "repos")); err != nil {
		t.Fatal(err)
	}
	copied(t, cluster, "repos", 3)
	c, admin := open(t, cluster)
	topic := topicOf(t, c, "repos")
	var granted atomic.Bool
	cluster.ControlKey(int16(kmsg.CreatePartitions), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		req := kreq.(*kmsg.CreatePartitionsRequest)
		resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
		for _, x := range req.Topics {
			resp.Topics = append(resp.Topics, kmsg.CreatePartitionsResponseTopic{Topic: x.Topic, ErrorCode: kerr.TopicAuthorizationFailed.Code})
		}
		return resp, nil, !granted.Load()
	})
	if err := c.Derive(t.Context(), topic); err != nil {
		t.Fatalf("the partitions that are there are held up: %v", err)
	}
	if err := c.Incomplete("repos", 1); err != nil {
		t.Errorf("a partition that is there: %v", err)
	}
	if err := c.Incomplete("repos", 2); !errors.Is(err, gateway.ErrTopicBlocked) || c.CompletePartitions(topic) != 2 {
		t.Errorf("a partition that is not: %v, complete %d", err, c.CompletePartitions(topic))
	}
	var out warning.List
	c.Warnings(&out)
	if all := out.All(); len(all) != 2 || all[0].Code != warning.ViewIncomplete || all[0].Subject != "repos/2" || all[0].Severity != warning.Error {
		t.Errorf("warnings %v", all)
	}
	granted.Store(true)
	if err := c.Derive(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	has(t, admin, 3, "repos.merged", "_geogate.state.repos")
	if err := c.Incomplete("repos", 2); err != nil || c.CompletePartitions(topic) != 3 {
		t.Errorf("once it may: %v, complete %d", err, c.CompletePartitions(topic))
	}
}

// TestUnevenEntities: a topic of entities is held while another region's log of it has
// another number of partitions, and the other's log is not one to fold.
func TestUnevenEntities(t *testing.T) {
	for copies, held := range map[int32]bool{2: false, 3: true} {
		cluster := newCluster(t)
		c, _ := open(t, cluster)
		if err := c.PrepareDeclared(t.Context()); err != nil {
			t.Fatal(err)
		}
		if c.SameKeys("flights", "eu") {
			t.Error("a copy that is not there spreads its keys alike")
		}
		copied(t, cluster, "flights", copies)
		c, _ = open(t, cluster)
		topic := topicOf(t, c, "flights")
		if got := numbers(topic); (topic.Held != "") != held || c.SameKeys("flights", "eu") == held || got != [3]int32{2, 2, 2} {
			t.Errorf("beside a copy of %d: held %q, %v", copies, topic.Held, got)
		}
		var out warning.List
		c.Warnings(&out)
		if n := out.Count()[warning.PartitionsDiffer]; (n == 1) != held {
			t.Errorf("beside a copy of %d: %v", copies, out.All())
		}
	}
}
