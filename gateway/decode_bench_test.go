package gateway

import (
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/txn"
)

// BenchmarkParseRecord reads records that are made to cost much: their time must grow
// with their bytes only.
func BenchmarkParseRecord(b *testing.B) {
	const size = 10 << 20
	fill := func(head, item, tail string) []byte {
		return []byte(head + strings.TrimSuffix(strings.Repeat(item, size/len(item)), ",") + tail)
	}
	for name, body := range map[string][]byte{
		"headers":        fill(`{"value":null,"headers":[`, `{"name":"a","value":"aGk="},`, `]}`),
		"empty headers":  fill(`{"value":null,"headers":[`, `{},`, `]}`),
		"no headers":     fill(`{"value":null,"headers":[`, `1,`, `]}`),
		"unknown":        fill(`{"value":null,`, `"a":1,`, `}`),
		"within a value": fill(`{"value":{"type":"json",`, `"a":1,`, `"data":1}}`),
		"small numbers":  fill(`{"value":{"type":"json","data":[`, `1,`, `]}}`),
		"objects":        fill(`{"value":{"type":"json","data":[`, `{"a":{}},`, `]}}`),
		"escapes":        fill(`{"value":{"type":"string","data":"`, `\u0041`, `"}}`),
		"one string":     fill(`{"value":{"type":"string","data":"`, `x`, `"}}`),
		"binary":         fill(`{"value":{"type":"binary","data":"`, `AAAA`, `"}}`),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = parseRecord(body, txn.DefaultRecordHeaders)
			}
		})
	}
}
