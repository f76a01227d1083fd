package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/warning"
)

// hostileText has what a terminal obeys: colours, a new title, a rewritten line, another
// direction, C1 controls, a hidden tag, and bytes that are no text.
const hostileText = "a\x1b[31mred\x1b]0;title\a\rover\x7f\u009b1m\u202etxt\u2028next\U000E0041\xff\x00"

func harmless(t *testing.T, s string) {
	t.Helper()
	if !utf8.ValidString(s) {
		t.Errorf("not UTF-8: %q", s)
	}
	if at := strings.IndexFunc(s, func(r rune) bool { return hasEffect(r) && r != '\n' && r != '\t' }); at >= 0 {
		t.Errorf("an effect at %d of %q", at, s)
	}
}

func TestTerminalLetsNoEffectThrough(t *testing.T) {
	for n := range len(hostileText) { // cut anywhere, characters too
		var b bytes.Buffer
		w := &terminal{to: &b}
		for _, part := range []string{hostileText[:n], hostileText[n:], "\tend\n"} {
			if written, err := w.Write([]byte(part)); err != nil || written != len(part) {
				t.Fatal(written, err)
			}
		}
		harmless(t, b.String())
		if !strings.Contains(b.String(), `a\u001b[31mred\u001b]0;title\u0007\u000dover\u007f\u009b1m\u202etxt\u2028next\udb40\udc41\ufffd\u0000`) || !strings.HasSuffix(b.String(), "\tend\n") {
			t.Fatalf("cut at %d: %q", n, b.String())
		}
	}
	var b bytes.Buffer
	if _, err := (&terminal{to: &b}).Write([]byte("Zürich \u6771\u4eac \u2713\n")); err != nil || b.String() != "Zürich \u6771\u4eac \u2713\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// TestJSONStaysJSON: escapes mean the same to whoever reads the JSON.
func TestJSONStaysJSON(t *testing.T) {
	in := "{\"reason\":\"\u202ex\u009by\U000E0041\"}"
	var b bytes.Buffer
	if _, err := (&terminal{to: &b}).Write([]byte(in)); err != nil {
		t.Fatal(err)
	}
	harmless(t, b.String())
	var before, after map[string]string
	if err := json.Unmarshal([]byte(in), &before); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &after); err != nil || before["reason"] != after["reason"] {
		t.Errorf("%q becomes %q, %v", in, b.String(), err)
	}
}

// TestStatusKeepsTextsInTheirLines: nothing that the status says can look like another line
// or column of it.
func TestStatusKeepsTextsInTheirLines(t *testing.T) {
	evil := "x\n\nWARN FAKE y: z\tcolumn\v\f" + hostileText
	s := gateway.Status{
		Region: evil, Instance: evil, Mode: evil,
		Regions:  []gateway.RegionStatus{{Name: evil, State: evil, Kafka: evil}},
		Links:    []gateway.LinkStatus{{Name: evil, From: evil, To: evil, State: evil, Stopped: []gateway.StoppedStatus{{Topic: evil, Reason: evil}}}},
		Units:    []gateway.UnitStatus{{Unit: evil, Owner: &evil, State: evil}},
		Warnings: []warning.Warning{{Code: "C", Subject: evil, Detail: evil, Severity: "error"}},
	}
	var b bytes.Buffer
	if err := printStatus(&b, s); err != nil {
		t.Fatal(err)
	}
	harmless(t, b.String())
	for line := range strings.Lines(b.String()) {
		if strings.HasPrefix(line, "WARN FAKE") || strings.Contains(line, "\t") {
			t.Errorf("a text has made the line %q", line)
		}
	}
	if n := strings.Count(b.String(), "\n"); n != 14 {
		t.Errorf("%d lines:\n%s", n, b.String())
	}
}
