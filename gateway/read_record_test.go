package gateway

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/data"
)

// The plain ways of what reads do for every record, to hold the fast ones against.

func slowlyEmbeddable(b []byte) bool {
	if len(b) == 0 || bytes.ContainsAny(b, "\r\n") || isSpace(b[0]) || isSpace(b[len(b)-1]) || !utf8.Valid(b) {
		return false
	}
	return jsontext.Value(b).IsValid(grammar()...) && tooDeep(b) < 0
}

func slowString(dst, text []byte) []byte {
	dst = append(dst, '"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c < 0x20:
			dst = fmt.Appendf(dst, `\u%04x`, c)
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

func slowTyped(b []byte, mayJSON bool) string {
	switch {
	case b == nil:
		return "null"
	case mayJSON && slowlyEmbeddable(b):
		return `{"type":"json","data":` + string(b) + `}`
	case utf8.Valid(b):
		return `{"type":"string","data":` + string(slowString(nil, b)) + `}`
	}
	return `{"type":"binary","data":"` + base64.StdEncoding.EncodeToString(b) + `"}`
}

// slowRecord is a record as it is in an answer.
func slowRecord(names event.RegionNames, topic string, ev *event.Event) string {
	quote := func(s string) string { return string(slowString(nil, []byte(s))) }
	id, op := "null", "put"
	if !ev.ID.IsZero() {
		id = quote(fmt.Sprintf("%x-%x-%x-%x-%x", ev.ID[:4], ev.ID[4:6], ev.ID[6:8], ev.ID[8:10], ev.ID[10:]))
	}
	if ev.Op == event.Delete {
		op = "del"
	}
	at := min(max(ev.Timestamp, firstMillis), lastMillis)
	var headers []string
	for _, h := range ev.Headers {
		if len(h.Key) >= 3 && strings.EqualFold(h.Key[:3], "gg-") {
			continue
		}
		value := "null"
		if h.Value != nil {
			value = quote(base64.StdEncoding.EncodeToString(h.Value))
		}
		headers = append(headers, `{"name":`+quote(strings.ToValidUTF8(h.Key, "\uFFFD"))+`,"value":`+value+`}`)
	}
	region := names.Name(ev.At.Region)
	return fmt.Sprintf(`{"topic":%s,"region":%s,"partition":%d,"offset":%d,"incarnation":%d,"dot":%s,"id":%s,"stamp":"%016x","timestamp":"%s","op":"%s","key":%s,"value":%s,"headers":[%s]}`,
		quote(topic), quote(region), ev.At.Partition, ev.At.Offset, ev.At.Incarnation,
		quote(fmt.Sprintf("%s/%d/%d/%d", region, ev.At.Incarnation, ev.At.Partition, ev.At.Offset)), id, uint64(ev.Stamp),
		time.UnixMilli(at).UTC().Format("2006-01-02T15:04:05.000Z"), op, slowTyped(ev.Key, false), slowTyped(ev.Value, true), strings.Join(headers, ","))
}

// someValues are values of real records, and others of all kinds.
func someValues() (out [][]byte) {
	for _, l := range append(data.Flights()[:200], data.GitHub()...) {
		out = append(out, l.Value, []byte(l.Key))
	}
	for _, v := range []string{"", " ", "null", "1", "-0.5e+7", "01", `"a\u00e4"`, `"\ud800"`, "{}", `{"a":[1,{"b":null}]} `, "[1,\n2]", "[1,\t2]", "\xff\xfe", "tru", "a\x00\"\\\r\n\tb", `{"a":1}{`} {
		out = append(out, []byte(v))
	}
	return append(out, nil, []byte(strings.Repeat("[", 64)+strings.Repeat("]", 64)), []byte(strings.Repeat("[", 65)+strings.Repeat("]", 65)))
}

// TestRecordForm: records of one read, whatever came before them, have the bytes that a
// record has on its own.
func TestRecordForm(t *testing.T) {
	w := newWorld(t, nil)
	rnd := rand.New(rand.NewPCG(10, 10))
	values := someValues()
	form := w.s.newRecordForm(`a "topic"`)
	var dst []byte
	now := int64(goldenTime)
	for i := range 5000 {
		pick := func() []byte { return values[rnd.IntN(len(values))] }
		ev := stamped(event.RegionID(1+rnd.IntN(2)), int32(rnd.IntN(10)), rnd.Int64N(1<<40), 0, "", "x")
		ev.Key, ev.Value, ev.At.Incarnation, ev.Stamp = pick(), values[i%len(values)], uint16(rnd.IntN(3)), event.Stamp(rnd.Uint64())
		if ev.Value == nil {
			ev.Op = event.Delete
		}
		if rnd.IntN(4) == 0 {
			ev.ID = event.ID{}
		}
		switch now += rnd.Int64N(700) - 200; rnd.IntN(20) {
		case 0:
			ev.Timestamp = rnd.Int64() - rnd.Int64()
		case 1:
			ev.Timestamp = -rnd.Int64N(5000)
		default:
			ev.Timestamp = now
		}
		for range rnd.IntN(4) {
			ev.Headers = append(ev.Headers, event.Header{Key: []string{"a", "gg-new", "GG-x", "\xff", `"`}[rnd.IntN(5)], Value: pick()})
		}
		before := len(dst)
		dst = append(form.append(dst, &ev), '}')
		if got, want := string(dst[before:]), slowRecord(w.s.cfg.Topology, `a "topic"`, &ev); got != want {
			t.Fatalf("record %d\n got %s\nwant %s", i, got, want)
		}
		if len(dst) > 1<<20 {
			dst = dst[:0]
		}
	}
}
