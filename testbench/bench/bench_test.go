//go:build unix

package main

import (
	"encoding/xml"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/apache"
)

// TestSuitesOnApache runs what is measured with a few records and compares counts, not times:
// whatever was answered is stored once, and what was folded is read.
func TestSuitesOnApache(t *testing.T) {
	// What the go command reads is no input of the test cache. Reading the folders of
	// the sources here makes them one: a change of the program runs the test again.
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != "../.." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	const count, events = 8, 3000
	o := options{
		kafkas: []string{"embedded"}, works: []string{"write", "fold"}, version: apache.Default, register: "quorum", heap: 384,
		dir: t.TempDir(), json: filepath.Join(t.TempDir(), "figures.json"),
		seconds: time.Minute, warm: 50 * time.Millisecond, raw: 50 * time.Millisecond, size: 1000, partitions: partitions, events: events, count: count, markdown: true,
	}
	if apache.Wanted(t) {
		o.kafkas = []string{"apache"}
		o.works = append(o.works, "start", "years")
		o.fences = 2 * time.Second
		o.seconds, o.warm = 6*time.Second, time.Second
	}
	var out strings.Builder
	rep := &report{out: &out, file: o.json}
	err = measure(t.Context(), o, rep)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{
		"ndjson": 4 * count, "ndjson, one key": 4 * count, "batch": 4 * count, "batch, one key": 4 * count,
		"singles, 64 connections": 64 * count, "single, alone": count, "entity reads, 64 connections": 64 * count,
		"fold of native events": events, "merged topic as NDJSON": events,
	}
	for _, f := range rep.figures {
		if n, ok := want[f.Work]; ok && f.Records != n && f.Note == "" {
			t.Errorf("%s: %d records, want %d", f.Work, f.Records, n)
		}
		delete(want, f.Work)
	}
	if len(want) > 0 {
		t.Errorf("not measured: %v", want)
	}
}

// TestGrowth: what has as much in the end as in the middle has not grown, and the curves are
// drawn of every sample.
func TestGrowth(t *testing.T) {
	var samples []sample
	for i := range int64(41) {
		samples = append(samples, sample{Seconds: float64(i), Records: 1000 * i, Store: 300 * 1000 * i, Memory: 1<<20 + i%2, Logs: 5})
	}
	got := grown(samples)
	for name, want := range map[string]float64{"store": 300, "memory": 0, "logs": 0} {
		if g := got[name+": bytes a record of growth"]; math.Abs(g-want) > 1e-3 {
			t.Errorf("%s grew by %f bytes a record, want %f", name, g, want)
		}
	}
	if grown(samples[:4]) != nil {
		t.Error("growth of too few samples")
	}
	var svg struct {
		Lines []struct {
			Points string `xml:"points,attr"`
		} `xml:"polyline"`
	}
	if err := xml.Unmarshal(curves(samples), &svg); err != nil || len(svg.Lines) != len(curvesOf) {
		t.Fatalf("%d curves of %d, %v", len(svg.Lines), len(curvesOf), err)
	}
	for i, l := range svg.Lines {
		if n := len(strings.Fields(l.Points)); n != len(samples) {
			t.Errorf("curve %d has %d points of %d", i, n, len(samples))
		}
	}
}

func TestValuesAreJSONAndRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{200, 1000, 5000} {
		a, b := value(rng, size), value(rng, size)
		if len(a) < size*9/10 || len(a) > size*11/10 || string(a) == string(b) || a[0] != '{' || a[len(a)-1] != '}' {
			t.Errorf("size %d: %d bytes, %.60q", size, len(a), a)
		}
	}
}

func TestRequestsGetNewKeys(t *testing.T) {
	keyOf := func(i int) string { return fmt.Sprint(i) }
	k := &keys{}
	for _, r := range []*request{single("t", "k", []byte(`{}`)), batch(rand.New(rand.NewPCG(1, 2)), "t", 3, 100, keyOf)} {
		seen := map[string]bool{}
		for range 2 {
			text := r.next(k.next)
			for _, at := range r.keys {
				key := string(text[at : at+keyDigits])
				if seen[key] || !strings.HasPrefix(string(text[at-len("bench-"):]), "bench-") || text[at+keyDigits] != '"' {
					t.Errorf("key %q of %.400q", key, text)
				}
				seen[key] = true
			}
		}
		if len(seen) != 2*r.records {
			t.Errorf("%d keys of %d records", len(seen), 2*r.records)
		}
	}
}

func TestStreamsAreChunks(t *testing.T) {
	s := newStream(rand.New(rand.NewPCG(1, 2)), 500, 1000, func(i int) string { return fmt.Sprint(i) })
	lines := 0
	for i, chunk := range s.chunks {
		var size int
		if _, err := fmt.Sscanf(string(chunk), "%x\r\n", &size); err != nil {
			t.Fatal(err)
		}
		text := string(chunk[strings.Index(string(chunk), "\n")+1:])
		if size != s.bytes[i] || len(text) != size+2 || strings.Count(text, "\n") != s.lines[i]+1 {
			t.Errorf("chunk %d: size %d, %d bytes, %d lines of %d", i, size, len(text), strings.Count(text, "\n")-1, s.lines[i])
		}
		lines += s.lines[i]
	}
	if lines != 500 {
		t.Errorf("%d lines", lines)
	}
}

func TestQuantile(t *testing.T) {
	var took []time.Duration
	for i := range 100 {
		took = append(took, time.Duration(100-i)*time.Millisecond)
	}
	if got := []float64{quantile(took, .5), quantile(took, .99), quantile(nil, .5)}; !slices.Equal(got, []float64{51, 100, 0}) {
		t.Error(got)
	}
}
