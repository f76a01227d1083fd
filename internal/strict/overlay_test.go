package strict_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/strict"
)

// layered has every type that a key may have.
type layered struct {
	Name   string             `yaml:"name"`
	On     bool               `yaml:"on"`
	Count  int                `yaml:"count"`
	ID     uint8              `yaml:"id"`
	Share  float64            `yaml:"share"`
	Wait   time.Duration      `yaml:"wait"`
	Limit  strict.Size        `yaml:"limit"`
	Names  []string           `yaml:"names"`
	Below  *layered           `yaml:"below"`
	Nested []layered          `yaml:"nested"`
	ByName map[string]layered `yaml:"by_name"`
}

// lay makes overlays of "source path=text".
func lay(lines ...string) []strict.Overlay {
	var out []strict.Overlay
	for _, l := range lines {
		source, rest, _ := strings.Cut(l, " ")
		path, text, _ := strings.Cut(rest, "=")
		out = append(out, strict.Overlay{Source: source, Path: strings.Split(path, "."), Text: text})
	}
	return out
}

func TestOverlaysWin(t *testing.T) {
	got := layered{Name: "default", Share: 0.5}
	_, err := strict.Read("f", []byte("name: a\ncount: 1\nnames: [x]\nby_name: {us: {id: 1, name: us}}\nbelow:\n"), &got, lay(
		"$NAME name=true", "$ON on=1", "$COUNT count=0x10", "$SHARE share=", "$WAIT wait=2m", "$LIMIT limit=8MiB", "$NAMES names=a,b",
		"$US by_name.us.id=7", "$EU by_name.eu.name=eu", "$BELOW below.below.name=deep", "--set name=later")...)
	if err != nil {
		t.Fatal(err)
	}
	want := layered{
		Name: "later", On: true, Count: 16, Wait: 2 * time.Minute, Limit: 8 * strict.MiB, Names: []string{"a", "b"},
		Below:  &layered{Below: &layered{Name: "deep"}},
		ByName: map[string]layered{"us": {ID: 7, Name: "us"}, "eu": {Name: "eu"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestOverlaysAreChecked wants every mistake, also those of what is covered, with
// its place: the file's first.
func TestOverlaysAreChecked(t *testing.T) {
	for name, tt := range map[string]struct {
		src      string
		overlays []string
		want     string
	}{
		"covered":         {"wait: 5\n", []string{"$WAIT wait=5s"}, `f:1:7: wait: want a duration with a unit, like 30s or 24h, have 5`},
		"covered map":     {"below: 5\n", []string{"$N below.name=x"}, `f:1:8: below: want a map, have 5`},
		"covered overlay": {"", []string{"$ID id=999", "--set id=1"}, `$ID: id: 999 is out of range`},
		"text":            {"", []string{"--set wait=5"}, `--set: wait: "5" is not a duration, write one like 500ms, 30s or 24h`},
		"switch":          {"", []string{"--set on=maybe"}, `--set: on: want true or false, have "maybe"`},
		"number":          {"", []string{"--set count=1.5"}, `--set: count: want a whole number, have "1.5"`},
		"map":             {"", []string{"--set below=x"}, `--set: below: want a map, have "x"`},
		"list of maps":    {"", []string{"--set nested=a,b"}, "--set: nested[0]: want a map, have \"a\"\n--set: nested[1]: want a map, have \"b\""},
		"unknown key":     {"", []string{"--set below.nmae=x"}, `--set: below.nmae: unknown key; did you mean "name"?`},
		"no keys below":   {"", []string{"--set name.x=y"}, `--set: name.x: unknown key: name has no keys below it`},
		"all in order": {
			"on: 1\nid: [\n]\n",
			[]string{"--set id=x", "$A limit=much"},
			"f:1:5: on: want true or false, have 1\nf:2:5: id: want a whole number, have a list\n" +
				"$A: limit: \"much\" is not a size, write a whole number of bytes or like 64KiB, 32MiB, 1GiB\n--set: id: want a whole number, have \"x\"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := strict.Read("f", []byte(tt.src), new(layered), lay(tt.overlays...)...)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got:\n%v\nwant:\n%s", err, tt.want)
			}
		})
	}
}

// TestOverlaysHavePlaces wants later complaints to name the source of what is in
// force, and the file for what no source gives.
func TestOverlaysHavePlaces(t *testing.T) {
	doc, err := strict.Read("f", []byte("count: 1\nbelow:\n  id: 2\n"), new(layered), lay("$COUNT count=3", "$DEEP below.below.name=x", "--set wait=1s")...)
	if err != nil {
		t.Fatal(err)
	}
	var bad strict.Problems
	for _, at := range []strict.Path{
		strict.At("wait"), strict.At("count"), strict.At("below"), strict.At("below", "id"), strict.At("below", "below"), strict.At("name"),
	} {
		bad.Add(at, "bad")
	}
	want := strings.Join([]string{
		"f:1:1: name: bad", "f:2:1: below: bad", "f:3:3: below.id: bad", "$COUNT: count: bad", "$DEEP: below.below: bad", "--set: wait: bad",
	}, "\n")
	if got := doc.Locate(bad.Err()); got == nil || got.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", got, want)
	}
}
