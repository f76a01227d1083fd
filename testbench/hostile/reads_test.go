//go:build unix

package hostile_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/client"
)

// rounds is how often a test repeats what seldom goes wrong: n times in a soak
// (GEOGATE_SOAK=1), else a tenth of it.
func rounds(n int) int {
	if os.Getenv("GEOGATE_SOAK") == "1" {
		return n
	}
	return n / 10
}

// TestReadsShowWhatTheTokenAsks: a read with a write's token that says that it is at the
// end has that write, each time.
func TestReadsShowWhatTheTokenAsks(t *testing.T) {
	d := deploy(t, spec{set: []string{"log.level=warn"}})
	from := "earliest"
	for i := range rounds(1000) {
		a := d.us.mustStore(t, client.Write{Topic: "github", Key: "k", Value: fmt.Append(nil, i)})
		found, end := false, false
		for !end {
			raw, _, err := d.us.Do(t.Context(), http.MethodGet, "/v1/topics/github/records?view=merged&from="+from, nil,
				http.Header{"Geogate-Token": {a.Token}})
			if err != nil {
				t.Fatalf("read %d: %v", i, err)
			}
			var p client.Page
			if err := client.Decode(raw, &p); err != nil {
				t.Fatal(err)
			}
			for _, r := range p.Records {
				found = found || r.Dot == a.Dot
			}
			from, end = p.Next, p.End
		}
		if !found {
			t.Fatalf("read %d says that it is at the end and lacks %s, which its token asks for", i, a.Dot)
		}
	}
}

// TestFirstReadShowsWhatIsThere: the first read of a topic that native producers have
// filled is not empty because the fold or the merged topic has only just begun.
func TestFirstReadShowsWhatIsThere(t *testing.T) {
	const records = 500
	d := deploy(t, spec{set: []string{"log.level=warn"}})
	admin := kadm.NewClient(d.us.kafka(t))
	for i := range rounds(100) {
		topic := fmt.Sprint("native", i)
		if _, err := admin.CreateTopic(t.Context(), 3, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
		var all []*kgo.Record
		for k := range records {
			all = append(all, &kgo.Record{Topic: topic, Partition: int32(k % 3), Key: fmt.Append(nil, k), Value: []byte("1")})
		}
		d.us.put(t, all...)
		n, from, end := 0, "earliest", false
		d.us.await(t, "the topic", func(ctx context.Context) error { _, err := d.us.Page(ctx, topic, "local", "earliest", 1); return err })
		for !end {
			p, err := d.us.Page(t.Context(), topic, "merged", from, 1000)
			if err != nil {
				t.Fatalf("topic %d: %v", i, err)
			}
			n, from, end = n+len(p.Records), p.Next, p.End
		}
		if n != records {
			t.Fatalf("the first read of topic %d says that it is at the end after %d of %d records", i, n, records)
		}
	}
}
