//go:build unix

package hostile_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/client"
)

// TestPairWithRegister: what the other tests build on. A pair with a register takes
// writes in both regions, each sees the other's, survives a kill, and its status and
// memory can be read.
func TestPairWithRegister(t *testing.T) {
	d := deploy(t, spec{pair: true, register: true, set: []string{"log.level=warn"}})
	for i, r := range d.regions() {
		r.mustStore(t, client.Write{Topic: "github", Key: "k", Value: []byte(fmt.Sprint(i)), Idem: r.name})
	}
	sees := func(r *region, n int) {
		t.Helper()
		r.await(t, fmt.Sprintf("a view of %d records", n), func(ctx context.Context) error {
			raw, _, err := r.Do(ctx, "GET", "/v1/topics/github/records?view=merged&from=earliest", nil, nil)
			if err == nil && strings.Count(string(raw), `"dot"`) != n {
				err = fmt.Errorf("answer %s", raw)
			}
			return err
		})
	}
	sees(d.us, 2)
	sees(d.eu, 2)
	d.eu.kill()
	d.us.put(t, &kgo.Record{Topic: "github", Partition: 1, Key: []byte("k"), Value: []byte(`"native"`)})
	d.eu.start(t)
	sees(d.eu, 3)
	d.eu.terminate(t)
	d.us.mustRun(t)
	s, err := d.us.status(t.Context())
	if err != nil || s.Region != "us" {
		t.Errorf("status %+v: %v", s, err)
	}
	if o := d.us.command(t, "status"); o.code != 0 || !strings.Contains(o.out, "REGION us") {
		t.Errorf("geogate status: %+v", o)
	}
	d.us.resetPeak(t)
	if now, peak := d.us.memory(t); now < 1<<20 || peak < now {
		t.Errorf("resident memory %d, at its highest %d", now, peak)
	}
}
