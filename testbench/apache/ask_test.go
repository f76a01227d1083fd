//go:build unix

package apache_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/geogate/geogate/testbench/apache"
)

// asker is a test of some name that asks for Apache Kafka. Its end is a panic.
type asker struct {
	testing.TB
	name string
}

func (a asker) Name() string          { return a.name }
func (a asker) Helper()               {}
func (a asker) Fatalf(string, ...any) { panic("failed") }
func (a asker) Skip(...any)           { panic("skipped") }

// ending runs f and says how the asker ended.
func ending(f func()) (how string) {
	defer func() {
		if r := recover(); r != nil {
			how = r.(string)
		}
	}()
	f()
	return "goes on"
}

// TestWhoAsksIsFound: a test that asks for Apache Kafka and whose name make kafka does not find
// fails, also in runs without brokers.
func TestWhoAsksIsFound(t *testing.T) {
	for _, c := range []struct{ name, set, requires, wants string }{
		{"TestCopyOnApache", "", "skipped", "goes on"},
		{"TestCopyOnApache/kafka-3.9.1", "", "skipped", "goes on"},
		{"TestCopyOnApache", "1", "goes on", "goes on"},
		{"BenchmarkCopy/apache", "", "skipped", "goes on"}, // make bench runs all
		{"TestCopy", "", "failed", "failed"},
		{"TestCopy", "1", "failed", "failed"},
		{"TestCopy/OnApache", "1", "failed", "failed"}, // -run Apache does not find it
	} {
		t.Setenv("GEOGATE_TEST_KAFKA", c.set)
		a := asker{name: c.name}
		if how := ending(func() { apache.Require(a) }); how != c.requires {
			t.Errorf("%s, set to %q, requires brokers and %s, want %s", c.name, c.set, how, c.requires)
		}
		if how := ending(func() {
			if got := apache.Wanted(a); got != (c.set == "1") {
				t.Errorf("%s, set to %q: wanted is %t", c.name, c.set, got)
			}
		}); how != c.wants {
			t.Errorf("%s, set to %q, wants brokers and %s, want %s", c.name, c.set, how, c.wants)
		}
	}
}

// TestNobodyStartsUnasked: a test that starts a broker without asking fails in make test.
func TestNobodyStartsUnasked(t *testing.T) {
	t.Setenv("GEOGATE_TEST_KAFKA", "")
	b, err := apache.Start(t.Context(), apache.Config{Dir: t.TempDir()})
	if err == nil {
		_ = b.Kill()
		t.Fatal("a broker was started")
	}
	if !strings.Contains(err.Error(), "Require") {
		t.Errorf("the error names no remedy: %v", err)
	}
}

// TestNobodyElseReadsTheVariable: a test that reads the variable itself could have a name that
// make kafka does not find. The attacks may: a target of their own runs all of them.
func TestNobodyElseReadsTheVariable(t *testing.T) {
	const root = "../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		reads := strings.Contains(string(text), `Getenv("GEOGATE_TEST_`+`KAFKA")`)
		if dir := filepath.Base(filepath.Dir(path)); reads && dir != "apache" && dir != "hostile" {
			t.Errorf("%s reads GEOGATE_TEST_KAFKA: call apache.Wanted or apache.Require", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
