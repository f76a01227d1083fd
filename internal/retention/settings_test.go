package retention_test

import (
	"slices"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/retention"
)

// TestSettings: each setting that deletes too early is found, with a value that is enough,
// and none that is enough is.
func TestSettings(t *testing.T) {
	local, copied := retention.Topic{Name: "flights", Use: retention.Log}, retention.Topic{Name: "us.github", Use: retention.Log, Compactable: true}
	state, register := retention.Topic{Name: "_geogate.state.flights", Use: retention.Latest}, retention.Topic{Name: "_geogate.ownership", Use: retention.Forever}
	for _, c := range []struct {
		what  string
		topic retention.Topic
		have  map[string]string
		want  []string // settings and what they should be
	}{
		{"defaults of a cluster", local, map[string]string{"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}, nil},
		{"exactly the window", local, map[string]string{"cleanup.policy": "delete", "retention.ms": "86400000"}, nil},
		{"a millisecond less", local, map[string]string{"cleanup.policy": "delete", "retention.ms": "86399999"}, []string{"retention.ms=86400000"}},
		{"nothing is kept", local, map[string]string{"cleanup.policy": "delete", "retention.ms": "0"}, []string{"retention.ms=86400000"}},
		{"for ever", local, map[string]string{"cleanup.policy": "delete", "retention.ms": "-1"}, nil},
		{"not told", local, nil, nil},
		{"compacted though of entities", local, map[string]string{"cleanup.policy": "compact", "retention.ms": "1"}, []string{"cleanup.policy=delete"}},
		{"compacted by its owner", copied, map[string]string{"cleanup.policy": "compact", "retention.ms": "1"}, nil},
		{"compacted and deleted", copied, map[string]string{"cleanup.policy": "compact,delete", "retention.ms": "1"}, []string{"retention.ms=86400000"}},
		{"state", state, map[string]string{"cleanup.policy": "compact", "retention.ms": "1", "delete.retention.ms": "600000"}, nil},
		{"deleted state", state, map[string]string{"cleanup.policy": "compact,delete", "delete.retention.ms": "86400000"}, []string{"cleanup.policy=compact"}},
		{"state that is not compacted", state, map[string]string{"cleanup.policy": "delete"}, []string{"cleanup.policy=compact"}},
		{"state, not told", state, nil, nil},
		{"no time for tombstones", state, map[string]string{"cleanup.policy": "compact", "delete.retention.ms": "1000"}, []string{"delete.retention.ms=600000"}},
		{"register", register, map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}, nil},
		{
			"register that ends", register,
			map[string]string{"cleanup.policy": "compact", "retention.ms": "5", "retention.bytes": "5"},
			[]string{"cleanup.policy=delete", "retention.ms=-1", "retention.bytes=-1"},
		},
	} {
		var got []string
		for _, s := range c.topic.Settings(c.have, 24*time.Hour) {
			got = append(got, s.Setting+"="+s.Set)
			if s.Value != c.have[s.Setting] || s.Must == "" || s.Why == "" {
				t.Errorf("%s: %+v", c.what, s)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: found %q, want %q", c.what, got, c.want)
		}
	}
}
