package router_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/router"
)

func topology(t *testing.T) *router.Topology {
	t.Helper()
	top, err := router.NewTopology(router.Region{Name: "eu", ID: 2}, router.Region{Name: "us", ID: 1}, router.Region{Name: "ap-south-1", ID: 15})
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func TestTopology(t *testing.T) {
	top := topology(t)
	var names []string
	for _, r := range top.Regions() {
		names = append(names, r.Name)
		if id, ok := top.ID(r.Name); !ok || id != r.ID || top.Name(id) != r.Name {
			t.Errorf("%s is %d, %t, which is %s", r.Name, id, ok, top.Name(id))
		}
	}
	if got := strings.Join(names, " "); got != "us eu ap-south-1" {
		t.Errorf("order by id is %s", got)
	}
	if _, ok := top.ID("jp"); ok || top.Name(3) != "" {
		t.Error("an unknown region is known")
	}
	if others := top.Others("us"); len(others) != 2 || others[0].Name != "eu" {
		t.Errorf("others of us are %v", others)
	}
}

func TestTopologyRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		regions []router.Region
		want    error
	}{
		"none":       {nil, router.ErrTopology},
		"id 0":       {[]router.Region{{Name: "us"}}, router.ErrTopology},
		"id 16":      {[]router.Region{{Name: "us", ID: 16}}, router.ErrTopology},
		"same id":    {[]router.Region{{"us", 1}, {"eu", 1}}, router.ErrTopology},
		"same name":  {[]router.Region{{"us", 1}, {"eu", 3}, {"us", 2}}, router.ErrTopology},
		"no name":    {[]router.Region{{"", 1}}, router.ErrAlias},
		"dot":        {[]router.Region{{"us.east", 1}}, router.ErrAlias},
		"capital":    {[]router.Region{{"US", 1}}, router.ErrAlias},
		"digit":      {[]router.Region{{"1us", 1}}, router.ErrAlias},
		"underscore": {[]router.Region{{"us_east", 1}}, router.ErrAlias},
		"32 long":    {[]router.Region{{strings.Repeat("a", 32), 1}}, router.ErrAlias},
	} {
		if _, err := router.NewTopology(tt.regions...); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", name, err, tt.want)
		}
	}
	if err := router.CheckAlias(strings.Repeat("a", 31)); err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		router.RemoteName("us", "orders"):           "us.orders",
		router.RemoteName("us", "eu.orders.merged"): "us.eu.orders.merged",
		router.Merged("orders"):                     "orders.merged",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for name, want := range map[string]bool{
		"_geogate.control": true, "_geogate.state.orders.merged": true, "__consumer_offsets": true,
		"orders": false, "us.orders": false, "_geogate": false, "us._geogate.control": false,
	} {
		if got := router.Internal(name); got != want {
			t.Errorf("%s is internal: %t", name, got)
		}
	}
}

func TestCheckTopic(t *testing.T) {
	for _, ok := range []string{"a", "A.b_c-9", strings.Repeat("x", 249)} {
		if err := router.CheckTopic(ok); err != nil {
			t.Errorf("%.20q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "a b", "a/b", "ä", strings.Repeat("x", 250), "a\x00"} {
		if err := router.CheckTopic(bad); !errors.Is(err, router.ErrTopicName) {
			t.Errorf("%.20q: got %v", bad, err)
		}
	}
	topic := strings.Repeat("x", 247)
	if err := router.CheckTopic(router.RemoteName("us", topic)); !errors.Is(err, router.ErrTopicName) {
		t.Errorf("a remote name of 250 characters passes: %v", err)
	}
}

func TestMurmur2(t *testing.T) {
	// The vectors of Apache Kafka's own test of its hash.
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(router.Murmur2([]byte(key))); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
	}
}

// TestPartition compares with the partitioner of the client library, which
// producers and MirrorMaker's Java agree with.
func TestPartition(t *testing.T) {
	reference := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		if key == nil {
			key = []byte{}
		}
		n := rapid.Int32Range(1, 1000).Draw(t, "partitions")
		want := reference.Partition(&kgo.Record{Key: key}, int(n))
		if got := router.Partition(key, n); int(got) != want {
			t.Fatalf("partition %d, want %d", got, want)
		}
	})
}

func TestSlots(t *testing.T) {
	// Pinned: positions written by one version are read by the next.
	if got := router.Slot("us.flights", 3); got != router.Partition([]byte("us.flights-3"), 32) {
		t.Errorf("slot %d", got)
	}
	if got := router.ConflictsPartition("flights", 11); got != router.Partition([]byte("flights-11"), 16) {
		t.Errorf("conflicts partition %d", got)
	}
	seen := map[int32]bool{}
	for p := range int32(1000) {
		s := router.Slot("us.flights", p)
		if s < 0 || s >= control.LinkPartitions {
			t.Fatalf("slot %d", s)
		}
		seen[s] = true
	}
	if len(seen) != control.LinkPartitions {
		t.Errorf("only %d slots are used", len(seen))
	}
}

func TestPattern(t *testing.T) {
	for _, tt := range []struct {
		pattern string
		yes, no string
	}{
		{"*", "orders us.orders", ""},
		{"orders", "orders", "orders2 my-orders order"},
		{"catalogue.*", "catalogue.a catalogue.a.b", "catalogue catalogueXa"},
		{"a?c", "abc a.c", "ac abbc"},
		{"/order(s|-items)/", "orders order-items", "orders2 myorders"},
		{"/a|b/", "a b", "ab ax"},
		{"/(?i)ORDERS/", "orders Orders", "order"},
	} {
		p, err := router.ParsePattern(tt.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if p.String() != tt.pattern {
			t.Errorf("%s prints as %s", tt.pattern, p)
		}
		for _, topic := range strings.Fields(tt.yes) {
			if !p.Match(topic) {
				t.Errorf("%s does not match %s", tt.pattern, topic)
			}
		}
		for _, topic := range strings.Fields(tt.no) {
			if p.Match(topic) {
				t.Errorf("%s matches %s", tt.pattern, topic)
			}
		}
	}
	for _, bad := range []string{"", "/(/", "a b", "a[bc]", "a,b", "^orders$", "/a\\"} {
		if _, err := router.ParsePattern(bad); !errors.Is(err, router.ErrPattern) {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

func TestMatcher(t *testing.T) {
	m, err := router.NewMatcher([]string{"orders*", "/pay.*/", "nothing"}, []string{"*-tmp", "never"})
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]router.Ruling{
		"orders":     {Included: true, List: "include", Pattern: "orders*"},
		"payments":   {Included: true, List: "include", Pattern: "/pay.*/"},
		"orders-tmp": {List: "exclude", Pattern: "*-tmp"},
		"stock":      {},
		"stock-tmp":  {List: "exclude", Pattern: "*-tmp"},
	} {
		if got := m.Match(topic); got != want {
			t.Errorf("%s: %+v, want %+v", topic, got, want)
		}
	}
	if got := m.Match("stock").String() + "; " + m.Match("orders").String(); got != `no pattern; include "orders*"` {
		t.Error(got)
	}
	if got := strings.Join(m.Idle([]string{"orders", "orders-tmp"}), " "); got != "/pay.*/ nothing never" {
		t.Errorf("idle patterns: %s", got)
	}
	all, err := router.NewMatcher([]string{"*"}, nil)
	if err != nil || len(all.Idle(nil)) != 0 {
		t.Errorf("idle * is a warning: %v, %v", all.Idle(nil), err)
	}
	if _, err := router.NewMatcher([]string{"*"}, []string{"/(/"}); !errors.Is(err, router.ErrPattern) {
		t.Errorf("got %v", err)
	}
}
