package redact_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/internal/redact"
)

const secret = "SECRET-KEY-OF-SOMEBODY"

// forms are the ways in which a text may hold bytes.
func forms(b []byte) []string {
	return []string{string(b), hex.EncodeToString(b), fmt.Sprintf("% x", b), strings.Trim(fmt.Sprint(b), "[]")}
}

// TestStoreErrors: what the store itself says of a key that it refuses has the key in hex.
func TestStoreErrors(t *testing.T) {
	db, err := badger.Open(badger.DefaultOptions("").WithInMemory(true).WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	key := []byte(strings.Repeat(secret, 65_536/len(secret)+1))
	err = db.Update(func(tx *badger.Txn) error { return tx.Set(key, nil) })
	if err == nil || !strings.Contains(err.Error(), "53 45 43 52 45 54") {
		t.Fatalf("the store does not show keys any more: %v", err)
	}
	got := redact.Text(fmt.Errorf("store copy: %w", err).Error())
	if !strings.HasPrefix(got, "store copy: Key with size") {
		t.Errorf("nothing is left: %s", got)
	}
	for _, f := range append(forms([]byte(secret)), "53 45 43") {
		if strings.Contains(got, f) {
			t.Errorf("%q is in %q", f, got)
		}
	}
}

func TestText(t *testing.T) {
	key := []byte(secret)
	long := strings.Repeat(secret, 20)
	for _, s := range []string{
		fmt.Sprintf("get key: %q", key), fmt.Sprintf("item key=%q, version=3", key), fmt.Sprintf("Key: %v, Version : 3", key),
		fmt.Sprintf("Key [%x, 7]. Error while fetching", key), fmt.Sprintf("parse %q", long), fmt.Sprintf("invalid record %x", long),
		fmt.Sprintf("record % x", key), fmt.Sprint("record ", key), "dump:\n" + hex.Dump(key),
	} {
		got := redact.Text(s)
		for _, f := range forms(key) {
			if strings.Contains(got, f) {
				t.Errorf("%q is in %q", f, got)
			}
		}
	}
	for _, s := range []string{
		`topic "flights" has 4 partitions, want 8`, "open /data/store/000001.vlog: no space left on device",
		"cluster 0123456789abcdef0123456789abcdef, 1 2 3 4", `unknown key "lisen"; did you mean "listen"?`,
	} {
		if got := redact.Text(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	if got := redact.Text(strings.Repeat("é", 10_000)); len(got) > 5<<10 || !utf8.ValidString(got) {
		t.Errorf("%d bytes, valid %v", len(got), utf8.ValidString(got))
	}
}

func TestAttr(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{ReplaceAttr: redact.Attr}))
	log.Error("cannot fold", "err", fmt.Errorf("get key: %q", secret), "topic", "flights")
	log.With("err", errors.New("key: \""+secret+"\"")).Error("cannot fold")
	if s := out.String(); strings.Contains(s, secret) || strings.Count(s, `"err":"`) != 2 || !strings.Contains(s, `"topic":"flights"`) {
		t.Error(s)
	}
}

func FuzzText(f *testing.F) {
	f.Add("get key: \"a\\\"b\" 00000000  53 45 |SE|\n[1 2 3]")
	f.Fuzz(func(t *testing.T, s string) {
		got := redact.Text(s)
		if !utf8.ValidString(got) || len(got) > 3*len(s)+16 {
			t.Fatalf("%q became %q", s, got)
		}
	})
}

// code is a number with a name.
type code uint8

func (c code) String() string { return "code " + string('a'+rune(c)) }

// TestAttrOfANamedNumber: a reader of the log wants the name.
func TestAttrOfANamedNumber(t *testing.T) {
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(&b, &slog.HandlerOptions{ReplaceAttr: redact.Attr})).Info("m", "kind", code(1), "level", slog.LevelWarn)
	if s := b.String(); !strings.Contains(s, `"kind":"code b"`) || !strings.Contains(s, `"level":"WARN"`) {
		t.Error(s)
	}
}
