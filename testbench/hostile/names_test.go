//go:build unix

package hostile_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/client"
)

// TestNamesThatCannotBeMade: topics whose copy, merged or state topic the cluster cannot
// have stop only themselves. The others are discovered, copied and written.
func TestNamesThatCannotBeMade(t *testing.T) {
	d := deploy(t, spec{pair: true, set: []string{"log.level=warn"}})
	create := func(r *region, names ...string) {
		t.Helper()
		responses, err := kadm.NewClient(r.kafka(t)).CreateTopics(t.Context(), 1, 1, nil, names...)
		if err != nil || responses.Error() != nil {
			t.Fatalf("create topics: %v, %v", err, responses.Error())
		}
	}
	long := strings.Repeat("n", 240)
	// On Apache Kafka a dot and an underscore collide: us.a_b beside us.a.b.
	create(d.eu, "us.a_b", "us_c.d", "taken.merged")
	create(d.us, "a.b", "c_d", "taken", "taken.merged", long, "free")
	d.us.put(t, &kgo.Record{Topic: "free", Key: []byte("k"), Value: []byte(`1`)})
	d.eu.await(t, "the topic without trouble", func(ctx context.Context) error {
		all, err := d.eu.Records(ctx, "github", "merged")
		if err == nil {
			_, err = d.us.Page(ctx, "free", "local", "earliest", 1)
		}
		entries, kerr := kadm.NewClient(d.eu.kafka(t)).ListTopics(ctx, "us.free")
		if err == nil && kerr == nil && !entries.Has("us.free") {
			err = fmt.Errorf("us.free does not exist in eu (%d records)", len(all))
		}
		return err
	})
	for _, name := range []string{long, "taken"} {
		raw, _, err := d.us.Do(t.Context(), http.MethodPost, "/v1/topics/"+name+"/records", []byte(`{"value":{"type":"json","data":1}}`),
			http.Header{"Content-Type": {"application/json"}})
		if client.Code(err) != "TOPIC_BLOCKED" {
			t.Errorf("write to %.10s: %s, %v", name, raw, err)
		}
		if _, err := d.us.Page(t.Context(), name, "merged", "earliest", 1); client.Code(err) != "TOPIC_BLOCKED" {
			t.Errorf("merged read of %.10s: %v", name, err)
		}
	}
	d.us.mustStore(t, client.Write{Topic: "free", Value: []byte("2")})
	list := d.us.command(t, "topic", "list")
	for _, want := range []string{"a local topic taken.merged exists already", "at most 249"} {
		if list.code != 0 || !strings.Contains(list.out, want) {
			t.Errorf("topic list lacks %q: %+v", want, list)
		}
	}
	if o := d.us.command(t, "status", "--check"); o.code != 3 || !strings.Contains(o.out, "TOPIC_BLOCKED taken") {
		t.Errorf("status --check: %+v", o)
	}
}
