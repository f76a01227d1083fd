package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// TestReadsFollowPointers: a record of the merged topic that stands for one which the topic
// refused is shown as the event is; one whose event the log has lost is not shown.
func TestReadsFollowPointers(t *testing.T) {
	for _, topic := range []string{"github", "flights"} {
		t.Run(topic, func(t *testing.T) {
			with, cl := withKafka(t, router.Merged(topic))
			w := newWorld(t, with)
			w.mu.Lock()
			few := w.topics[topic]
			few.Partitions = 2
			w.topics[topic] = few
			w.mu.Unlock()
			s, rule := w.seat(topic, 0), event.Rule(0)
			s.events = make(map[event.Dot]event.Event)
			if topic == "flights" {
				rule = event.LWW
			}
			replace := func(ev event.Event, x event.Replaced) {
				s.mu.Lock()
				s.events[ev.At] = ev
				s.mu.Unlock()
				m := conflict.Merged{Event: &ev, Rule: rule}
				x.Timestamp = ev.Timestamp
				if x.LeftOut {
					m.Event.Headers = nil
					if ev.Value != nil {
						m.Event.Value = []byte{}
					}
				}
				produce(t, cl, router.Merged(topic), ev.At.Partition, ev.Key, m.Event.Value, append(m.Headers(), x.Header()))
			}
			var all []event.Event
			for i := range int64(4) {
				ev := stamped(us, 0, i, 0, fmt.Sprint("key", i), fmt.Sprintf(`{"n":%d}`, i))
				if i > 0 {
					ev.Timestamp = 1_796_000_000_123 + i // not that of the record
				}
				ev.Headers = []event.Header{{Key: "h", Value: []byte{1}}}
				all = append(all, ev)
			}
			all[3].Op, all[3].Value = event.Delete, nil
			merge(t, cl, topic, rule, all[0])
			replace(all[1], event.Replaced{LeftOut: true, Code: 10})
			replace(all[2], event.Replaced{OwnTime: true, Code: 32})
			replace(all[3], event.Replaced{LeftOut: true, OwnTime: true, Code: 10})
			s.commit(vector(4, 0), 4)
			w.seat(topic, 1)
			read := func() (records []json.RawMessage, lacks string) {
				t.Helper()
				r := w.do(get("/v1/topics/" + topic + "/records?from=earliest"))
				var page struct{ Records []json.RawMessage }
				if err := json.Unmarshal([]byte(text(t, r)), &page); err != nil || r.StatusCode != 200 {
					t.Fatalf("status %d: %v", r.StatusCode, err)
				}
				return page.Records, r.Header.Get("Geogate-Incomplete")
			}
			records, lacks := read()
			if lacks != "" {
				t.Errorf("%s lacks nothing, and says %q", topic, lacks)
			}
			if len(records) != len(all) {
				t.Fatalf("%d records, want %d", len(records), len(all))
			}
			for i, got := range records {
				ev := all[i]
				if want := slowRecord(w.s.cfg.Topology, topic, &ev); string(got) != want {
					t.Errorf("record %d\n got %s\nwant %s", i, got, want)
				}
			}
			s.mu.Lock()
			s.fetchErr = view.ErrGone
			s.mu.Unlock()
			if records, lacks = read(); len(records) != len(all)-1 || lacks != topic+"/0" {
				t.Errorf("%d records, want all but the lost one; it says that it lacks %q", len(records), lacks)
			}
			// If the header of the answer has been sent already, the trailer says it.
			for i := range int64(80) {
				merge(t, cl, topic, rule, stamped(us, 1, i, 0, "large", `"`+strings.Repeat("x", 1024)+`"`))
			}
			last := all[1]
			last.At.Offset = 100
			replace(last, event.Replaced{LeftOut: true, Code: 10})
			r := w.do(get("/v1/topics/" + topic + "/records?from=earliest&limit=1000"))
			if n := len(text(t, r)); n < partSize || r.Trailer.Get("Geogate-Incomplete") != topic+"/0" {
				t.Errorf("%d bytes with the trailer %q", n, r.Trailer)
			}
		})
	}
}
