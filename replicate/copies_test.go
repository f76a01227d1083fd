package replicate_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/event"
)

// settings are those of a topic that say what it keeps.
func (e *end) settings(t *testing.T, topic string) map[string]string {
	t.Helper()
	described, err := kadm.NewClient(e.cl).DescribeTopicConfigs(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, c := range described[0].Configs {
		out[c.Key] = c.MaybeValue()
	}
	return out
}

// keeps is why the link says that a topic's copy keeps everything; blocked, why it does not
// copy it.
func (r *running) keeps(topic string) (why, blocked string) {
	rulings, _ := r.Topics()
	for _, x := range rulings {
		if x.Topic == topic && x.Blocked {
			blocked = x.Reason
		}
		if x.Topic == topic {
			why = x.KeepsAll
		}
	}
	return why, blocked
}

// TestCopiesOfCompactedTopicsOnApache: the copy of a compacted topic is compacted until a gateway
// begins to write it, and keeps everything from then on, also after a restart; that of a
// topic which was written before, or has entities, is never compacted.
func TestCopiesOfCompactedTopicsOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, from, to *end) {
		compact := map[string]string{"cleanup.policy": "compact", "retention.ms": "60000"}
		from.create(t, 1, compact, "native", "written")
		from.create(t, 1, map[string]string{"retention.ms": "60000"}, "events")
		var begun atomic.Bool
		cfg := config(from, to)
		cfg.NativeOnly = func(topic string, _ event.TopicID) bool { return topic != "written" && !begun.Load() }
		l := start(t, cfg)
		for _, topic := range []string{"native", "written", "events"} {
			from.produce(t, rows(topic, 0, 0, 10)...)
		}
		l.caughtUp(t, from, "native", "written", "events")
		check := func(topic, cleanup, retention, lag string) {
			t.Helper()
			got := to.settings(t, "us."+topic)
			if got["cleanup.policy"] != cleanup || got["retention.ms"] != retention || lag != "" && got["min.compaction.lag.ms"] != lag {
				t.Errorf("copy of %s: cleanup.policy %s, retention.ms %s, min.compaction.lag.ms %s", topic, got["cleanup.policy"], got["retention.ms"], got["min.compaction.lag.ms"])
			}
		}
		check("native", "compact", "-1", "3600000")
		check("written", "delete", "-1", "")
		check("events", "delete", "60000", "")
		if why, _ := l.keeps("native"); why != "" {
			t.Errorf("native keeps everything: %s", why)
		}
		if why, _ := l.keeps("events"); why != "" {
			t.Errorf("events keeps everything: %s", why)
		}
		if why, _ := l.keeps("written"); !strings.Contains(why, "a gateway writes to the topic") {
			t.Errorf("written does not say that it keeps everything: %q", why)
		}
		begun.Store(true)
		eventually(t, "the copy to keep everything", func() bool { return to.settings(t, "us.native")["cleanup.policy"] == "delete" })
		eventually(t, "the link to say so", func() bool { why, _ := l.keeps("native"); return why != "" })
		check("native", "delete", "-1", "")
		from.produce(t, rows("native", 0, 10, 10)...)
		l.caughtUp(t, from, "native")
		l.stop(t)
		l = start(t, cfg)
		from.produce(t, rows("native", 0, 20, 10)...)
		l.caughtUp(t, from, "native")
		check("native", "delete", "-1", "")
		if why, _ := l.keeps("native"); why == "" {
			t.Error("after a restart it does not say that it keeps everything")
		}
	})
}

// TestCopyThatCannotBeChanged: where the target does not let the link compact a copy, the
// copy keeps everything; where it does not let it stop, the topic is not copied on.
func TestCopyThatCannotBeChanged(t *testing.T) {
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, map[string]string{"cleanup.policy": "compact"}, "before", "after")
	denied := func() *kfake.FaultHandle {
		return to.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.IncrementalAlterConfigs}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	}
	var begun atomic.Bool
	cfg := config(from, to)
	cfg.Include = []string{"before"}
	cfg.NativeOnly = func(string, event.TopicID) bool { return !begun.Load() }
	h := denied()
	l := start(t, cfg)
	from.produce(t, rows("before", 0, 0, 10)...)
	l.caughtUp(t, from, "before")
	if why, _ := l.keeps("before"); !strings.Contains(why, "does not let the link compact it") || to.settings(t, "us.before")["cleanup.policy"] != "delete" {
		t.Errorf("before: %q, %v", why, to.settings(t, "us.before")["cleanup.policy"])
	}
	l.stop(t)
	h.Remove()

	cfg.Include = []string{"*"}
	l = start(t, cfg)
	from.produce(t, rows("after", 0, 0, 10)...)
	l.caughtUp(t, from, "after")
	if to.settings(t, "us.after")["cleanup.policy"] != "compact" {
		t.Fatal("the copy is not compacted")
	}
	h = denied()
	begun.Store(true)
	eventually(t, "the topic to be blocked", func() bool {
		_, blocked := l.keeps("after")
		return strings.Contains(blocked, "set cleanup.policy=delete")
	})
	if _, blocked := l.keeps("before"); blocked != "" {
		t.Errorf("before is blocked: %s", blocked)
	}
	h.Remove()
	from.produce(t, rows("after", 0, 10, 10)...)
	l.caughtUp(t, from, "after")
	if got := to.settings(t, "us.after")["cleanup.policy"]; got != "delete" {
		t.Errorf("cleanup.policy is %s", got)
	}
}
