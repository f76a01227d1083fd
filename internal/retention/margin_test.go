package retention_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/retention"
)

var began = time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)

const window = 24 * time.Hour

// look is one of a log at a time after began.
func look(after time.Duration, start, end, next int64) retention.Look {
	return retention.Look{
		At: began.Add(after), Start: start, End: end, Needs: []retention.Need{{Reader: "link us-eu", Next: next, Until: math.MaxInt64}}, Recent: -1,
	}
}

// TestNear: a reader is in danger when what it has not read is old, or large, or when the
// log's start comes near; not when it has read everything, or only what was written since
// the look before is left.
func TestNear(t *testing.T) {
	sized := func(l retention.Look, bytes, most int64) retention.Look { l.Bytes, l.MaxBytes = bytes, most; return l }
	aged := func(l retention.Look, old int64) retention.Look { l.Old = old; return l }
	until := func(l retention.Look, until int64) retention.Look { l.Needs[0].Until = until; return l }
	for what, c := range map[string]struct {
		looks  []retention.Look
		want   string // of the last look; "": no danger
		margin int64
	}{
		"nothing is deleted":          {[]retention.Look{look(0, 0, 100, 0), look(time.Minute, 0, 1000, 0)}, "", 0},
		"all is read":                 {[]retention.Look{look(0, 0, 100, 100), look(time.Minute, 100, 100, 100)}, "", -1},
		"just written":                {[]retention.Look{look(0, 0, 100, 100), look(time.Minute, 100, 200, 100)}, "", -1},
		"first look":                  {[]retention.Look{aged(look(0, 0, 100, 10), 50)}, "", -1},
		"old":                         {[]retention.Look{look(0, 0, 100, 10), aged(look(time.Minute, 0, 100, 10), 11)}, "older than 80 % of retention.ms", 10},
		"not so old":                  {[]retention.Look{look(0, 0, 100, 10), aged(look(time.Minute, 0, 100, 10), 10)}, "", 10},
		"large":                       {[]retention.Look{look(0, 0, 100, 10), sized(look(time.Minute, 0, 100, 10), 1000, 1125)}, "more than 80 % of retention.bytes", 10},
		"not so large":                {[]retention.Look{look(0, 0, 100, 10), sized(look(time.Minute, 0, 100, 10), 1000, 1126)}, "", 10},
		"close to a start that moves": {[]retention.Look{look(0, 0, 1000, 110), look(30*time.Minute, 20, 1000, 110)}, "records are being deleted, and between the start of the log and that one are 90", 90},
		"far from it":                 {[]retention.Look{look(0, 0, 1000, 200), look(30*time.Minute, 20, 1000, 200)}, "", 180},
		"reached soon":                {[]retention.Look{look(0, 0, 1000, 420), look(30*time.Minute, 300, 1000, 420)}, "", 120},
		"reached sooner":              {[]retention.Look{look(0, 0, 1000, 400), look(30*time.Minute, 300, 1000, 400)}, "records are being deleted, and as in the last 30m0s that one will be in 10m0s", 100},
		"moved long ago":              {[]retention.Look{look(0, 0, 1000, 110), look(time.Minute, 20, 1000, 110), look(time.Hour, 20, 1000, 110), look(2*time.Hour, 20, 1000, 110)}, "", 90},
		"deleted already":             {[]retention.Look{look(0, 0, 1000, 110), look(30*time.Minute, 120, 1000, 110)}, "the log begins at 120, so records that it has to read are deleted", 0},
		"nothing is read":             {[]retention.Look{look(0, 0, 1000, 0), look(30*time.Minute, 0, 1000, 0)}, "", 0},
		"it begins above":             {[]retention.Look{look(0, 5, 1000, 0), look(30*time.Minute, 120, 1000, 0)}, "", -1},
		"past a cut":                  {[]retention.Look{look(0, 0, 1000, 110), until(look(30*time.Minute, 20, 1000, 110), 110)}, "", -1},
		"another log":                 {[]retention.Look{look(0, 0, 1000, 110), look(30*time.Minute, 5, 50, 7)}, "", -1},
	} {
		var p retention.Partition
		var d retention.Danger
		for _, l := range c.looks {
			d = p.Look(l, time.Minute)
		}
		got := strings.Join(d.Near, "\n")
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) || d.Margin != c.margin || got != "" && !strings.Contains(got, "link us-eu has read up to offset") {
			t.Errorf("%s: %q, margin %d, want %q and %d", what, got, d.Margin, c.want, c.margin)
		}
	}
}

// TestShort: records that are deleted though they were written within the window are told,
// for as long as that lasts, and what retention.bytes will delete within it.
func TestShort(t *testing.T) {
	var p retention.Partition
	at := func(after time.Duration, start, end int64) string {
		return p.Look(look(after, start, end, end), window).Short
	}
	for h := range 30 { // 100 records an hour; everything is kept
		if s := at(time.Duration(h)*time.Hour, 0, int64(h)*100); s != "" {
			t.Fatalf("after %d hours: %s", h, s)
		}
	}
	if s := at(30*time.Hour, 500, 3000); s != "" { // written 25 hours ago
		t.Error(s)
	}
	if s := at(31*time.Hour, 2050, 3100); !strings.HasPrefix(s, "records less than 11h0m0s old were deleted") {
		t.Errorf("after the deletion of what is 10 hours old: %q", s)
	}
	if s := at(43*time.Hour, 2050, 4300); s == "" {
		t.Error("it is not told any more")
	}
	if s := at(45*time.Hour, 2050, 4400); s != "" {
		t.Error("told after the window:", s)
	}
	p = retention.Partition{}
	l := look(0, 0, 1000, 1000)
	l.Bytes, l.MaxBytes, l.Recent = 1_000_000, 600_000, 500
	if s := p.Look(l, window).Short; !strings.Contains(s, "take more than 80 % of retention.bytes (600000)") {
		t.Errorf("half of a million bytes: %q", s)
	}
	if l.Recent = 600; p.Look(l, window).Short != "" {
		t.Error("400 of 600 kB is short")
	}
}

// TestMemoryIsBounded: looks of a year leave no more than those of a window.
func TestMemoryIsBounded(t *testing.T) {
	var p retention.Partition
	for m := range 200_000 {
		if d := p.Look(look(time.Duration(m)*time.Minute, int64(max(0, m-20_000)), int64(m), int64(m)), window); d.Short != "" || len(d.Near) > 0 {
			t.Fatal(d)
		}
	}
	if n := retention.Marks(&p); n > 80 {
		t.Errorf("%d marks", n)
	}
}
