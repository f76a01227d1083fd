package secret_test

import (
	"bytes"
	crand "crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/secret"
)

func write(t *testing.T, b []byte, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	for range 200 { // what machines make is accepted, whichever bytes come
		raw := make([]byte, 16)
		crand.Read(raw)
		if raw[15] == '\n' || raw[15] == '\r' {
			continue
		}
		for _, s := range [][]byte{raw, []byte(hex.EncodeToString(raw)), []byte(crand.Text())} {
			got, err := secret.Read(write(t, append(bytes.Clone(s), '\n'), 0o640))
			if err != nil || !bytes.Equal(got, s) {
				t.Fatalf("%x reads as %x, %v", s, got, err)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	good := hex.EncodeToString([]byte("0f8a3c5e7b1d2946"))
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"everybody reads":  {good, 0o644, "chmod 600"},
		"everybody writes": {good, 0o602, "chmod 600"},
		"empty":            {"", 0o600, "0 bytes"},
		"short":            {"0123456789abcde", 0o600, "15 bytes"},
		"one letter":       {strings.Repeat("a", 64), 0o600, "guessed"},
		"a word again":     {strings.Repeat("password", 8), 0o600, "guessed"},
		"a word":           {"changemechangeme", 0o600, "guessed"},
		"long":             {strings.Repeat(good, 4000), 0o600, "at most"},
	} {
		_, err := secret.Read(write(t, []byte(c.text), c.mode))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		} else if c.text != "" && strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: the error has the secret: %v", name, err)
		}
	}
	if _, err := secret.Read(t.TempDir()); err == nil {
		t.Error("a directory is read")
	}
	if _, err := secret.Read(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing file is read")
	}
}
