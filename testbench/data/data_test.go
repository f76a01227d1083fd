package data_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/geogate/geogate/testbench/data"
)

func TestExcerpts(t *testing.T) {
	flights, github := data.Flights(), data.GitHub()
	if len(flights) != 1480 || len(github) != 40 {
		t.Fatalf("%d flights, %d webhooks", len(flights), len(github))
	}
	if f := flights[0]; f.Number != 1 || f.Key != "DTW" {
		t.Errorf("first flight %+v", f)
	}
	size, keys := 0, make(map[string]int)
	for _, l := range append(flights, github...) {
		size += len(l.Value) + 1
	}
	for _, l := range github {
		keys[l.Key]++
	}
	if size > 300<<10 {
		t.Errorf("excerpts hold %d bytes, at most 300 KiB belong here", size)
	}
	// The residency policy of the demo names these two.
	if keys["octo-org/octo-repo"] == 0 || keys["octocat/hello-world"] == 0 || len(keys) < 10 {
		t.Errorf("keys %v", keys)
	}
}

func TestLoad(t *testing.T) {
	f, g, full, err := data.Load("")
	if err != nil || full || len(f) != 1480 || len(g) != 40 {
		t.Fatalf("excerpt: %d, %d, full %v, %v", len(f), len(g), full, err)
	}
	dir := t.TempDir()
	if _, _, _, err := data.Load(dir); err == nil {
		t.Fatal("loaded from an empty directory")
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(data.FlightsFile, "{\"origin\":\"DTW\"}\r\n{\"origin\":\"LAS\"}")
	write(data.GitHubFile, "{\"key\":\"a/b\"}\n")
	f, g, full, err = data.Load(dir)
	if err != nil || !full || len(f) != 2 || f[1].Key != "LAS" || string(f[0].Value) != `{"origin":"DTW"}` || len(g) != 1 {
		t.Fatalf("directory: %v, %v, full %v, %v", f, g, full, err)
	}
	write(data.GitHubFile, "{\"kee\":\"a/b\"}\n")
	if _, _, _, err := data.Load(dir); err == nil {
		t.Fatal("loaded a line without its key")
	}
}
