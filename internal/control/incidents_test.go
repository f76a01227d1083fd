package control_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/client"
)

// TestForgedIncidents: whoever may write the control topic, and has no secret, can neither
// invent an incident nor accept one, nor take back what was accepted: without a proof, with
// that of another secret, of another region, of another incident, or with a tombstone. What
// is not believed is counted and told, and what it has written over is written again.
func TestForgedIncidents(t *testing.T) {
	wait, done := context.WithTimeout(t.Context(), 10*time.Second)
	defer done()
	b := newBroker(t)
	b.createAll()
	f, stop := b.follow()
	defer stop()
	<-f.Ready()
	k := control.NewIncidents(f, b.client, time.Hour, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	secret := []byte(event.DefaultIdempotencySecret)
	x := func(from int64) incident.Incident {
		return incident.Incident{
			Place: incident.Place{Kind: incident.Fold, Log: topicA, Partition: 3, From: from}, Topic: "flights", Name: "us.flights", Origin: 2, Until: from + 10,
			Found: time.UnixMilli(5000).UTC(),
		}
	}
	produced := 0
	produce := func(key, value []byte) {
		t.Helper()
		b.produce(control.TopicControl, 0, key, value)
		produced++
		if err := f.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	unsigned := func(value []byte) []byte { return append([]byte{1}, value[1:len(value)-16]...) }
	invented := control.Incident{Incident: x(0)}
	produce(invented.AppendKey(nil), unsigned(invented.AppendValue(nil)))
	produce(invented.AppendKey(nil), invented.AppendValue(nil))
	invented.Prove(1, []byte("a guess"))
	produce(invented.AppendKey(nil), invented.AppendValue(nil))
	invented.Prove(2, secret) // taken from the topic of eu
	produce(invented.AppendKey(nil), invented.AppendValue(nil))
	if all := k.All(); len(all) != 0 {
		t.Fatalf("believed: %+v", all)
	}
	real := x(100)
	k.Report(real)
	forgery := control.Acceptance{Acceptance: incident.Acceptance{ID: real.ID(), Until: real.Until, At: time.UnixMilli(6000), By: "mallory"}}
	produce(forgery.AppendKey(nil), unsigned(forgery.AppendValue(nil)))
	other := forgery
	other.ID = invented.ID()
	other.Prove(1, secret) // of another incident
	produce(forgery.AppendKey(nil), other.AppendValue(nil))
	if e, ok := k.Get(real.ID()); !ok || e.State(time.Now(), time.Hour) != incident.Open {
		t.Fatalf("accepted by a forged record: %+v", e)
	}
	mine := incident.Acceptance{ID: real.ID(), Until: real.Until, At: time.UnixMilli(7000), By: "alice", Reason: "old"}
	if _, err := k.Accept(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	var list warning.List
	b.skipped.Warnings(&list)
	if all := list.All(); len(all) != 1 || !strings.HasPrefix(all[0].String(), "UNPROVEN_RECORD _geogate.control/0: 6 records were passed over") || b.skipped.Total() != uint64(produced) {
		t.Errorf("warnings %v, %d of %d", all, b.skipped.Total(), produced)
	}
	// lasts tells whether what compaction would leave of the topic has the acceptance.
	lasts := func(ctx context.Context) error {
		all, err := client.ReadTopic(ctx, b.cluster.ListenAddrs(), control.TopicControl, true)
		if err != nil {
			return err
		}
		last := make(map[string][]byte)
		for _, r := range all {
			last[string(r.Key)] = r.Value
		}
		found, err := control.ParseIncident(control.Incident{Incident: real}.AppendKey(nil), last[string(control.Incident{Incident: real}.AppendKey(nil))])
		if err != nil || found.Incident != real {
			return errors.Join(err, fmt.Errorf("the incident is not there, but %+v", found))
		}
		got, err := control.ParseAcceptance(forgery.AppendKey(nil), last[string(forgery.AppendKey(nil))])
		if err != nil || got.By != "alice" {
			return errors.Join(err, errors.New("the acceptance is not there"))
		}
		return nil
	}
	var why error
	for _, value := range [][]byte{unsigned(forgery.AppendValue(nil)), nil, []byte("x")} {
		produce(forgery.AppendKey(nil), value)
		produce(control.Incident{Incident: real}.AppendKey(nil), value)
		if err := client.Poll(wait, 20*time.Millisecond, func() error { why = lasts(wait); return why }); err != nil {
			t.Fatal(err, why)
		}
	}
	// A follower that starts believes the same.
	again, stopAgain := b.follow()
	defer stopAgain()
	<-again.Ready()
	all := control.NewIncidents(again, b.client, time.Hour, nil).All()
	if len(all) != 1 || all[0].Incident != real || all[0].Acceptance == nil || all[0].Acceptance.By != "alice" {
		t.Errorf("a start finds %+v", all)
	}
}
