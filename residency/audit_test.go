package residency_test

import (
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/geogate/geogate/residency"
)

// The bytes of docs/format/audit.md.
const (
	goldenAuditKey   = "01bb00000000000000000000000000000203"
	goldenAuditValue = "010667697468756200000c" + "9c1f000000000000000000000000000000000000000000000000000000000000" + "02" + "e807" + "0007" +
		"020c7075626c69632d7265706f730764656661756c74" + "5d" + "04" + "02" + "0100" + "01" + "0201" + "01" + "03" + "0a" + "0401"
	goldenOrphans = "020667697468756200000c" + "9c1f000000000000000000000000000000000000000000000000000000000000" + "02" + "e807" + "0007" +
		"020c7075626c69632d7265706f730764656661756c74" + "5d" + "05" + "02" + "0100" + "01" + "0201" + "01" + "03" + "0a" + "0401" + "03" + "05"
)

// TestAuditIsSmall: the audit is kept for years, so a record of one decision has a bounded
// size, however far the offsets and numbers have come.
func TestAuditIsSmall(t *testing.T) {
	a := goldenAudit()
	a.Generation, a.Revision, a.ProducerID, a.ProducerEpoch = 1<<20, 1<<20, 1<<40, 1<<15-1
	a.Runs = []residency.Run{{From: 1 << 50, Until: 1<<50 + 1<<20, Code: a.Runs[0].Code, Rule: a.Runs[0].Rule}}
	names := len(a.Topic) + len(a.Runs[0].Rule)
	if n := len(a.AppendKey(nil)) + len(a.AppendValue(nil)) - names; n > 110 {
		t.Errorf("a record of one decision takes %d bytes beside its names", n)
	}
}

// goldenAudit is what the golden bytes say.
func goldenAudit() residency.Audit {
	a := residency.Audit{
		To: 1, ID: [16]byte{0: 0xbb, 15: 2}, Topic: "github", Partition: 3, Revision: 12, Generation: 2, ProducerID: 1000, ProducerEpoch: 7,
		Runs: []residency.Run{
			{From: 93, Until: 95, Code: residency.Allowed, Rule: "public-repos"},
			{From: 95, Until: 96, Code: residency.Denied, Rule: residency.DefaultRule},
			{From: 96, Until: 97, Code: residency.NoRecord},
			{From: 97, Until: 107, Code: residency.Doubtful, Rule: residency.DefaultRule},
		},
	}
	a.Digest[0], a.Digest[1] = 0x9c, 0x1f
	return a
}

func TestAuditGolden(t *testing.T) {
	checkGolden(t, goldenAudit(), goldenAuditValue)
	// With orphans the version is another one.
	a := goldenAudit()
	a.Runs = append(a.Runs, residency.Run{From: 107, Until: 110, Code: residency.Orphan})
	checkGolden(t, a, goldenOrphans)
	// Which the version before did not have.
	key, _ := hex.DecodeString(goldenAuditKey)
	value, _ := hex.DecodeString(goldenOrphans)
	value[0] = 1
	if _, err := residency.ParseAudit(key, value); err == nil {
		t.Fatal("an orphan in version 1")
	}
}

func checkGolden(t *testing.T, a residency.Audit, golden string) {
	t.Helper()
	key, value := a.AppendKey(nil), a.AppendValue(nil)
	if hex.EncodeToString(key) != goldenAuditKey || hex.EncodeToString(value) != golden {
		t.Fatalf("key %x\nvalue %x", key, value)
	}
	doc, err := os.ReadFile("../docs/format/audit.md")
	if err != nil || !strings.Contains(string(doc), goldenAuditKey) || !strings.Contains(string(doc), golden) {
		t.Fatal("docs/format/audit.md lacks the bytes", err)
	}
	got, err := residency.ParseAudit(key, value)
	if err != nil || !reflect.DeepEqual(got, a) {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range value {
		if _, err := residency.ParseAudit(key, value[:i]); err == nil {
			t.Fatalf("%d bytes of %d parse", i, len(value))
		}
	}
	if _, err := residency.ParseAudit(key, append(value, 0)); err == nil {
		t.Fatal("a byte too many parses")
	}
}

// What a deposed instance writes late does not count, wherever it lies.
func TestSupersedes(t *testing.T) {
	first := residency.Audit{Generation: 1, ProducerID: 1000, ProducerEpoch: 7}
	again, taken, moved := first, first, first
	taken.ProducerEpoch++
	moved.Generation, moved.ProducerID, moved.ProducerEpoch = 2, 5, 0
	for _, c := range []struct {
		later, before residency.Audit
		want          bool
	}{{again, first, true}, {taken, first, true}, {first, taken, false}, {moved, taken, true}, {taken, moved, false}} {
		if got := c.later.Supersedes(&c.before); got != c.want {
			t.Errorf("%+v behind %+v: %v", c.later, c.before, got)
		}
	}
}

func TestAppendRun(t *testing.T) {
	var runs []residency.Run
	for _, r := range []residency.Run{{0, 2, residency.Allowed, "a"}, {2, 3, residency.Allowed, "a"}, {3, 3, residency.Denied, "b"}, {3, 5, residency.Allowed, "b"}} {
		runs = residency.AppendRun(runs, r)
	}
	if want := []residency.Run{{0, 3, residency.Allowed, "a"}, {3, 5, residency.Allowed, "b"}}; !reflect.DeepEqual(runs, want) {
		t.Fatalf("%v", runs)
	}
}

func FuzzParseAudit(f *testing.F) {
	key, _ := hex.DecodeString(goldenAuditKey)
	value, _ := hex.DecodeString(goldenAuditValue)
	f.Add(key, value)
	orphans, _ := hex.DecodeString(goldenOrphans)
	f.Add(key, orphans)
	f.Fuzz(func(t *testing.T, key, value []byte) {
		a, err := residency.ParseAudit(key, value)
		if err != nil {
			return
		}
		again, err := residency.ParseAudit(a.AppendKey(nil), a.AppendValue(nil))
		if err != nil || len(again.Runs) != len(a.Runs) {
			t.Fatalf("%+v: %v", a, err)
		}
	})
}
