package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/dirlock"
)

// A fresh demo does not delete the files of one that runs.
func TestFreshDemoBesideAnother(t *testing.T) {
	dir := t.TempDir()
	release, err := dirlock.Take(dir, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = release() }()
	kept := filepath.Join(dir, "us.yaml")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := demo{dir: dir, fresh: true, ports: "auto", regions: demoRegions(), out: io.Discard}
	if err := d.run(); err == nil || !strings.Contains(err.Error(), "another demo runs in "+dir) {
		t.Errorf("it ends with %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}
