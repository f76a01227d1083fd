//go:build unix

package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"
)

// hits are the forms in which a scan finds each canary.
func hits(t *testing.T, s *scanner, text []byte) map[int]string {
	t.Helper()
	out := make(map[int]string)
	if _, err := s.scan(bytes.NewReader(text), func(n needle, _ int64) { out[n.canary] = n.form }); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestScannerSeesEveryForm(t *testing.T) {
	c := newCanary("a slot", `é"/<+ `)
	s := newScanner([]canary{newCanary("another", "-"), c})
	asJSON, err := json.Marshal(map[string]string{"x": c.text})
	if err != nil {
		t.Fatal(err)
	}
	var wide []byte
	for _, u := range utf16.Encode([]rune(c.text)) {
		wide = append(wide, byte(u), byte(u>>8))
	}
	percent := ""
	for _, b := range []byte(c.text) {
		percent += fmt.Sprintf("%%%02X", b)
	}
	sum := sha256.Sum256([]byte(c.text))
	forms := map[string][]byte{
		"raw": []byte(c.text), "JSON": asJSON, "path": []byte(url.PathEscape(c.text)), "query": []byte(url.QueryEscape(c.text)),
		"percent": []byte(percent), "hex": []byte(hex.EncodeToString([]byte(c.text))),
		"HEX":   []byte(strings.ToUpper(hex.EncodeToString([]byte(c.text)))),
		"lower": []byte(strings.ToLower(c.halves[0]) + c.halves[1]), "UTF-16": wide,
		"digest": sum[:], "half": []byte(c.halves[1]),
	}
	for shift := range 4 {
		inner := append(bytes.Repeat([]byte{'#'}, shift), c.text+"tail"...)
		forms[fmt.Sprintf("base64 behind %d", shift)] = []byte(base64.StdEncoding.EncodeToString(inner))
		forms[fmt.Sprintf("base64url behind %d", shift)] = []byte(base64.RawURLEncoding.EncodeToString(inner))
	}
	for name, form := range forms {
		for _, around := range []string{"", "some text before "} {
			got := hits(t, s, []byte(around+string(form)+around))
			if _, ok := got[1]; !ok || len(got) != 1 {
				t.Errorf("%s: found %v, want the canary alone", name, got)
			}
		}
	}
}

func TestScannerFindsNothingElse(t *testing.T) {
	s := newScanner([]canary{newCanary("a slot", "-")})
	other := newCanary("not looked for", "-")
	if got := hits(t, s, []byte(other.text+strings.Repeat("x", 100))); len(got) != 0 {
		t.Errorf("found %v in another text", got)
	}
	// The limit that the scan's run without compression is there for.
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	fmt.Fprint(w, strings.Repeat(s.canaries[0].text, 3))
	w.Close()
	if got := hits(t, s, zipped.Bytes()); len(got) != 0 {
		t.Errorf("found %v in compressed text: then nobody need switch compression off", got)
	}
}

func TestScannerSeesAcrossBlocks(t *testing.T) {
	c := newCanary("a slot", "-")
	s := newScanner([]canary{c})
	for _, at := range []int{0, scanBlock - 10, scanBlock + s.longest - 5, 2*scanBlock - 1} {
		text := make([]byte, 3*scanBlock)
		copy(text[at:], c.halves[0])
		found := int64(-1)
		read, err := s.scan(iotest.HalfReader(bytes.NewReader(text)), func(_ needle, offset int64) { found = offset })
		if err != nil || read != int64(len(text)) || found != int64(at) {
			t.Errorf("planted at %d, found at %d, read %d, %v", at, found, read, err)
		}
	}
}
