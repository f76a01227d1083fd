package topics_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/geogate/geogate/internal/control"
)

// Internal topics get the settings that keep them short, also where they exist, and an
// operator's stay.
func TestInternalTopicsAreShort(t *testing.T) {
	cluster := newCluster(t,
		existing{control.TopicControl, 1, map[string]string{"cleanup.policy": "compact"}},
		existing{control.TopicIncarnations, 1, map[string]string{"cleanup.policy": "compact", "segment.bytes": "2097152"}})
	c, admin := open(t, cluster)
	for range 2 { // nothing changes the second time
		if err := c.PrepareInternal(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := map[string]map[string]string{
			control.TopicControl:        {"segment.bytes": "1048576", "segment.ms": "600000", "delete.retention.ms": "600000"},
			control.TopicIncarnations:   {"segment.bytes": "2097152", "segment.ms": "600000", "delete.retention.ms": "86400000"},
			control.TopicTopics:         {"segment.bytes": "1048576", "delete.retention.ms": "86400000"},
			control.PositionsFrom("eu"): {"segment.bytes": "1048576", "delete.retention.ms": "600000"},
			control.RunsFrom("eu"):      {"segment.bytes": "1048576", "delete.retention.ms": "600000"},
			control.ControlFrom("eu"):   {"segment.bytes": "1048576", "delete.retention.ms": "600000"},
			control.TopicConflicts:      {"segment.bytes": "104857600"},
		}
		for topic, settings := range want {
			has := configsOf(t, admin, topic)
			for key, value := range settings {
				if has[key] != value {
					t.Errorf("%s of %s is %s, want %s", key, topic, has[key], value)
				}
			}
		}
	}
}

func configsOf(t *testing.T, admin *kadm.Client, topic string) map[string]string {
	t.Helper()
	described, err := admin.DescribeTopicConfigs(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, d := range described {
		for _, x := range d.Configs {
			out[x.Key] = x.MaybeValue()
		}
	}
	return out
}
