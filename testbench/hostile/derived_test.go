//go:build unix

package hostile_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/geogate/geogate/testbench/client"
)

// noise is a JSON string of n bytes, quotes included, that does not compress.
func noise(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return []byte(`"` + base64.StdEncoding.EncodeToString(b)[:n-2] + `"`)
}

// TestLargestRecords: the largest record that a topic is said to take, a record of 3 MB where
// the topic allows 5 MB, and two concurrent values of 600 kB for one key are shown in both
// regions, and their partitions go on. One byte more than the largest is refused before it is
// stored. Settings that a foreign hand has made too low are mended, or what they refuse is
// read from the log; the status says so.
func TestLargestRecords(t *testing.T) {
	d := deploy(t, spec{pair: true, register: true, set: []string{"log.level=warn", "http.max_record=4MiB", "limits.batch_unfolded=128MiB"}})
	for _, r := range d.regions() {
		large := "5000000"
		if _, err := kadm.NewClient(r.kafka(t)).CreateTopic(t.Context(), 1, 1, map[string]*string{"max.message.bytes": &large}, "large"); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]map[string][]byte{"github": {}, "large": {}} // values by key, of events
	store := func(r *region, topic, key string, value []byte) {
		t.Helper()
		r.mustStore(t, client.Write{Topic: topic, Key: key, Value: value, Idem: topic + key})
		if want[topic] != nil {
			want[topic][key] = value
		}
	}
	for _, r := range d.regions() {
		store(r, "github", "small "+r.name, []byte(`1`)) // the topic's limit is known from here on
		store(r, "large", "small "+r.name, []byte(`1`))
		store(r, "large", "3 MB "+r.name, noise(3_000_000, 1))
		key := "largest " + r.name
		most := 1_048_588 - 1<<10 - len(key)
		store(r, "github", key, noise(most, 2))
		_, err := r.Try(t.Context(), client.Write{Topic: "github", Key: key, Value: noise(most+1, 3)})
		var p *client.Problem
		if !errors.As(err, &p) || p.Status != http.StatusRequestEntityTooLarge || p.Code != "RECORD_TOO_LARGE" || !strings.Contains(p.Detail, "max.message.bytes of github") {
			t.Errorf("one byte more: %v", err)
		}
	}
	shown := func(topic string) {
		t.Helper()
		for _, r := range d.regions() {
			r.await(t, "the view of "+topic, func(ctx context.Context) error {
				all, err := r.Records(ctx, topic, "merged")
				if err != nil || len(all) != len(want[topic]) {
					return fmt.Errorf("%d records of %d: %w", len(all), len(want[topic]), err)
				}
				for _, x := range all {
					if x.Value.Text() != string(want[topic][x.Key.Text()]) {
						return fmt.Errorf("key %s has a value of %d bytes, want %d", x.Key.Text(), len(x.Value.Text()), len(want[topic][x.Key.Text()]))
					}
				}
				return nil
			})
		}
	}
	shown("github")
	shown("large")

	agree := func(key string) (siblings int) {
		t.Helper()
		d.us.await(t, "entity "+key, func(ctx context.Context) error {
			us, err := d.us.Entity(ctx, "flights", key, "", "")
			if err != nil {
				return err
			}
			eu, err := d.eu.Entity(ctx, "flights", key, "", "")
			switch {
			case err != nil:
				return err
			case us.Raw != eu.Raw:
				return fmt.Errorf("%s in us, %s in eu", us.Version, eu.Version)
			case len(us.Value.Text()) != 600_000:
				return fmt.Errorf("value of %d bytes", len(us.Value.Text()))
			}
			siblings = len(us.Siblings)
			return nil
		})
		return siblings
	}
	both := func(prefix string) {
		t.Helper()
		for n := range 20 { // until neither region has seen the other's write
			key := fmt.Sprint(prefix, n)
			var writes sync.WaitGroup
			for i, r := range d.regions() {
				writes.Go(func() {
					if _, err := r.Store(t.Context(), client.Write{Topic: "flights", Key: key, Value: noise(600_000, byte(i)), Idem: key + r.name}); err != nil {
						t.Error(err)
					}
				})
			}
			writes.Wait()
			if agree(key) == 1 {
				return
			}
		}
		t.Fatal("no two writes were concurrent")
	}
	both("a")
	for _, r := range d.regions() {
		low := "700000"
		if _, err := kadm.NewClient(r.kafka(t)).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &low}}, "_geogate.state.flights", "github.merged"); err != nil {
			t.Fatal(err)
		}
	}
	both("b")
	for _, r := range d.regions() {
		store(r, "github", "mended "+r.name, noise(1_000_000, 4))
	}
	shown("github")
	for _, r := range d.regions() {
		if o := r.command(t, "status", "--check"); o.code != 0 {
			t.Errorf("status --check in %s: %+v", r.name, o)
		}
		r.mustRun(t)
	}
}
