//go:build unix

package gateway

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
)

// recordOf is a record with a value of so many bytes, under an idempotency key.
func recordOf(i, size int) string {
	filler := strings.Repeat("x", size)
	return fmt.Sprintf(`{"key":{"type":"string","data":"key-%06d"},"value":{"type":"json","data":{"seq":%d,"text":"%s"}},"idempotency_key":"run-%08d"}`, i, i, filler, i)
}

// processorTime is what the process has used so far, of all threads: other load on the
// machine does not count.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRecord reads, hashes and answers one record of 1 kB, as each line of a stream is.
func BenchmarkRecord(b *testing.B) {
	body := []byte(recordOf(7, 1000))
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			if _, err := parseRecord(body, txn.DefaultRecordHeaders); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("hash key", func(b *testing.B) {
		h := event.NewKeyHasher([]byte(event.DefaultIdempotencySecret))
		b.ReportAllocs()
		for b.Loop() {
			_ = h.Hash("", "flights", "run-00000007")
		}
	})
	b.Run("fingerprint", func(b *testing.B) {
		rec, err := parseRecord(body, txn.DefaultRecordHeaders)
		if err != nil {
			b.Fatal(err)
		}
		q := event.Request{Topic: "flights", Key: rec.key, Op: event.Put, Value: rec.value, Partition: -1}
		b.ReportAllocs()
		for b.Loop() {
			_ = q.Fingerprint()
		}
	})
	w := newWorld(b, nil)
	b.Run("permit", func(b *testing.B) {
		rec, err := parseRecord(body, txn.DefaultRecordHeaders)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		topic := w.topics["flights"]
		permits := w.s.writer.permits(&topic)
		for b.Loop() {
			var p permitted
			if err := permits.permit(rec, &p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("answer", func(b *testing.B) {
		a, _ := w.accept(b.Context(), seat.Request{}, 3)
		form := w.s.newStoredForm(w.topics["flights"])
		var dst []byte
		b.ReportAllocs()
		for b.Loop() {
			dst, _ = form.append(dst[:0], &a)
		}
	})
}

// BenchmarkStream sends streams of lines of 1 kB to a seat that answers at once.
func BenchmarkStream(b *testing.B) {
	const lines = 5000
	for _, one := range []bool{false, true} {
		name := map[bool]string{false: "many keys", true: "one key"}[one]
		b.Run(name, func(b *testing.B) {
			w := newWorld(b, nil)
			w.atOnce = true
			var body strings.Builder
			for i := range lines {
				k := i
				if one {
					k = 0
				}
				body.WriteString(recordOf(k, 1000) + "\n")
			}
			h := w.s.dataHandler()
			b.ReportAllocs()
			b.SetBytes(int64(body.Len()))
			began := processorTime(b)
			for b.Loop() {
				r := httptest.NewRequest("POST", "http://127.0.0.1/v1/topics/flights/records", strings.NewReader(body.String()))
				r.Header.Set("Content-Type", "application/x-ndjson")
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, r)
				if n := strings.Count(rec.Body.String(), `"ack":"local"`); n != lines {
					b.Fatalf("%d lines are stored", n)
				}
			}
			b.ReportMetric(float64((processorTime(b)-began).Nanoseconds())/float64(b.N*lines), "cpu-ns/line")
		})
	}
}

// BenchmarkSingle sends single records of 1 kB to a seat that answers at once.
func BenchmarkSingle(b *testing.B) {
	w := newWorld(b, nil)
	w.atOnce = true
	body := recordOf(7, 1000)
	h := w.s.dataHandler()
	b.ReportAllocs()
	began := processorTime(b)
	for b.Loop() {
		r := httptest.NewRequest("POST", "http://127.0.0.1/v1/topics/flights/records", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if rec.Code != 200 {
			b.Fatal(rec.Body)
		}
	}
	b.ReportMetric(float64((processorTime(b)-began).Nanoseconds())/float64(b.N), "cpu-ns/record")
}

// BenchmarkBatch sends JSON batches of records of 1 kB to a seat that answers at once.
func BenchmarkBatch(b *testing.B) {
	const records = 1000
	w := newWorld(b, nil)
	w.atOnce = true
	var all []string
	for i := range records {
		all = append(all, recordOf(i, 1000))
	}
	body := batchOf(all...)
	h := w.s.dataHandler()
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	began := processorTime(b)
	for b.Loop() {
		r := httptest.NewRequest("POST", "http://127.0.0.1/v1/topics/flights/records", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if n := strings.Count(rec.Body.String(), `"ack":"local"`); n != records || rec.Code != 200 {
			b.Fatalf("%d records are stored, status %d", n, rec.Code)
		}
	}
	b.ReportMetric(float64((processorTime(b)-began).Nanoseconds())/float64(b.N*records), "cpu-ns/record")
}
