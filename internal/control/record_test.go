package control_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
)

var (
	topicA = event.TopicID{0xaa, 15: 0x01}
	topicB = event.TopicID{0xbb, 15: 0x02}
)

// codec is one record type with an example, its bytes, and its parser.
type codec struct {
	name       string
	record     any
	key, value []byte
	golden     [2]string
	parse      func(key, value []byte) (any, error)
}

func codecs() []codec {
	b := control.Barrier{Topic: topicA, Partition: 3, ProducerID: 1000, ProducerEpoch: 7, Instance: "us-0"}
	p := control.Progress{
		ID: topicA, Partition: 3, Topic: "flights", End: event.Point{Incarnation: 1, Next: 300}, Closed: 0x01a226bf497b0007,
		Promised: event.Vector{1: {Next: 300}, 2: {Incarnation: 1, Next: 94}}, Ownership: 4, Incarnation: 1, Counted: true, Floor: event.Point{Next: 12},
	}
	i := control.Incarnation{Origin: 2, Topic: "flights", Partition: 3, Number: 1, ID: topicB, Truncations: 1, End: 4711}
	x := control.Restriction{Origin: 2, To: 1, Topic: "flights"}
	set := control.Settings{Region: 1, Values: []control.SettingValue{
		{ID: control.SettingWindow, Value: []byte{0, 0, 0, 0, 5, 0x26, 0x5c, 0}},
		{ID: control.SettingSecret, Value: control.SecretDigest([]byte(event.DefaultIdempotencySecret))},
		{ID: control.SettingRegister, Value: []byte{3}},
		{ID: control.SettingResidency, Value: []byte{}},
	}}
	set.Prove([]byte(event.DefaultIdempotencySecret))
	lost := control.Incident{Incident: incident.Incident{
		Place: incident.Place{Kind: incident.Fold, Log: topicA, Partition: 3, From: 2}, Topic: "flights", Name: "us.flights", Origin: 1, Until: 300,
		Found: time.UnixMilli(1_796_083_200_123).UTC(),
	}}
	lost.Prove(1, []byte(event.DefaultIdempotencySecret))
	ack := control.Acceptance{Acceptance: incident.Acceptance{ID: lost.ID(), Until: 300, At: time.UnixMilli(1_796_083_260_000).UTC(), By: "alice", Reason: "old"}}
	ack.Prove(1, []byte(event.DefaultIdempotencySecret))
	jud := control.Judged{ID: topicA, Partition: 3, Topic: "flights", From: event.Point{Next: 12}, To: event.Point{Incarnation: 1, Next: 300}}
	jud.Prove(1, []byte(event.DefaultIdempotencySecret))
	rt := control.Topic{Name: "eu.flights", ID: topicA, Kind: control.KindRemote, Origin: 2, Link: "eu-us", Source: "flights", SourceID: topicB}
	dt := control.Topic{Name: "flights.merged", ID: topicA, Kind: control.KindDerived, Use: control.UseMerged, Of: "flights"}
	st := control.Topic{Name: "_geogate.state.flights", ID: topicA, Kind: control.KindDerived, Use: control.UseState, Of: "flights", Partitions: 6}
	wrap := func(x any, err error) (any, error) { return x, err }
	return []codec{
		{"barrier", b, b.AppendKey(nil), b.AppendValue(nil), [2]string{
			"01aa00000000000000000000000000000103e8070007", "010475732d30",
		}, func(k, v []byte) (any, error) { return wrap(control.ParseBarrier(k, v)) }},
		{"progress", p, p.AppendKey(nil), p.AppendValue(nil), [2]string{
			"02aa00000000000000000000000000000103", "0107666c696768747301ac0201a226bf497b0007020100ab0202015d0402000c",
		}, func(k, v []byte) (any, error) { return wrap(control.ParseProgress(k, v)) }},
		{"incarnation", i, i.AppendKey(nil), i.AppendValue(nil), [2]string{
			"030207666c6967687473030001", "01bb00000000000000000000000000000201e724",
		}, func(k, v []byte) (any, error) { return wrap(control.ParseIncarnation(k, v)) }},
		{"restriction", x, x.AppendKey(nil), x.AppendValue(nil), [2]string{
			"04020107666c6967687473", "01",
		}, func(k, v []byte) (any, error) { return wrap(control.ParseRestriction(k, v)) }},
		{"settings", set, set.AppendKey(nil), set.AppendValue(nil), [2]string{
			"0501", "010401080000000005265c000210022049487aaad025dc9cb02528b3a2b005010307005cd976a75a0d709d2dc09990f4a6301b",
		}, func(k, v []byte) (any, error) { return wrap(control.ParseSettings(k, v)) }},
		{"incident", lost, lost.AppendKey(nil), lost.AppendValue(nil), [2]string{
			"06507aafe36612", "0201aa00000000000000000000000000000103010002ac0207666c69676874730a75732e666c6967687473000001a22ee6b07b4c128becce7aa20a167ac3d7bc66c11a",
		}, func(k, v []byte) (any, error) { return wrap(control.ParseIncident(k, v)) }},
		{"acceptance", ack, ack.AppendKey(nil), ack.AppendValue(nil), [2]string{
			"07507aafe36612", "02ac02000001a22ee79a6005616c696365036f6c64935b806fbced62be87e36aee6256606c",
		}, func(k, v []byte) (any, error) { return wrap(control.ParseAcceptance(k, v)) }},
		{"judged", jud, jud.AppendKey(nil), jud.AppendValue(nil), [2]string{
			"08aa00000000000000000000000000000103", "0207666c6967687473000c01ac0218d448bc072a6b18f9b1f753155b3c1a",
		}, func(k, v []byte) (any, error) { return wrap(control.ParseJudged(k, v)) }},
		{"remote topic", rt, rt.AppendKey(nil), rt.AppendValue(nil), [2]string{
			"65752e666c6967687473", "0101aa000000000000000000000000000001020565752d757307666c6967687473bb000000000000000000000000000002",
		}, func(k, v []byte) (any, error) { return wrap(control.ParseTopic(k, v)) }},
		{"derived topic", dt, dt.AppendKey(nil), dt.AppendValue(nil), [2]string{
			"666c69676874732e6d6572676564", "0102aa0000000000000000000000000000010107666c6967687473",
		}, func(k, v []byte) (any, error) { return wrap(control.ParseTopic(k, v)) }},
		{"state topic", st, st.AppendKey(nil), st.AppendValue(nil), [2]string{
			"5f67656f676174652e73746174652e666c6967687473", "0202aa0000000000000000000000000000010207666c696768747306",
		}, func(k, v []byte) (any, error) { return wrap(control.ParseTopic(k, v)) }},
	}
}

// controlCodecs are those of control topics: all but the registry's.
func controlCodecs() []codec {
	return slices.DeleteFunc(codecs(), func(c codec) bool {
		_, registry := c.record.(control.Topic)
		return registry
	})
}

func TestGoldenBytes(t *testing.T) {
	doc, err := os.ReadFile("../../docs/format/control.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range codecs() {
		t.Run(c.name, func(t *testing.T) {
			for i, raw := range [][]byte{c.key, c.value} {
				if got := hex.EncodeToString(raw); got != c.golden[i] {
					t.Errorf("bytes %d = %s, want %s", i, got, c.golden[i])
				}
				if !strings.Contains(string(doc), c.golden[i]) {
					t.Errorf("docs/format/control.md lacks %s", c.golden[i])
				}
			}
			if got, err := c.parse(c.key, c.value); err != nil || !reflect.DeepEqual(got, c.record) {
				t.Errorf("parse = %+v, %v", got, err)
			}
		})
	}
}

func TestCutBytesAreMalformed(t *testing.T) {
	for _, c := range codecs() {
		for n := range len(c.value) {
			if _, err := c.parse(c.key, c.value[:n]); !errors.Is(err, event.ErrMalformed) {
				t.Errorf("%s: value of %d bytes: %v", c.name, n, err)
			}
		}
		if _, err := c.parse(c.key, append(c.value[:len(c.value):len(c.value)], 0)); !errors.Is(err, event.ErrMalformed) {
			t.Errorf("%s: a byte too many: %v", c.name, err)
		}
		if _, err := c.parse(nil, c.value); !errors.Is(err, event.ErrMalformed) {
			t.Errorf("%s: no key: %v", c.name, err)
		}
	}
}

func TestTypeOf(t *testing.T) {
	tested := make(map[control.Type]bool)
	for _, c := range controlCodecs() {
		ty, ok := control.TypeOf(c.key)
		if !ok || ty != control.Type(c.key[0]) {
			t.Errorf("TypeOf(%s) = %v, %v", c.name, ty, ok)
		}
		tested[ty] = true
	}
	for first := range 256 {
		if ty, ok := control.TypeOf([]byte{byte(first)}); ok && !tested[ty] {
			t.Errorf("codecs() has no row for type %d", ty)
		}
	}
	for _, key := range []string{"", "\x00", "\xff"} {
		if _, ok := control.TypeOf([]byte(key)); ok {
			t.Errorf("TypeOf(%q) is known", key)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range codecs() {
		f.Add(c.key, c.value)
	}
	type record interface {
		AppendKey([]byte) []byte
		AppendValue([]byte) []byte
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		for _, c := range codecs() {
			x, err := c.parse(key, value)
			if err != nil {
				continue
			}
			r := x.(record)
			if k, v := r.AppendKey(nil), r.AppendValue(nil); string(k) != string(key) || string(v) != string(value) {
				t.Errorf("%s: %x %x came back as %x %x", c.name, key, value, k, v)
			}
		}
	})
}

// Names are protocol: other regions, and versions before and after, compute the
// same ones.
func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		control.TopicControl:        "_geogate.control",
		control.TopicTopics:         "_geogate.topics",
		control.TopicIncarnations:   "_geogate.incarnations",
		control.TopicConflicts:      "_geogate.conflicts",
		control.ControlFrom("us"):   "_geogate.control.us",
		control.PositionsFrom("us"): "_geogate.positions.us",
		control.RunsFrom("us"):      "_geogate.runs.us",
		control.StateOf("orders"):   "_geogate.state.orders",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestSettingsAreProven: only who has the secret can write settings that count as proven, and
// no byte of them can be changed; nothing of the secret is in them.
func TestSettingsAreProven(t *testing.T) {
	secret := []byte("0123456789abcdef0123456789abcdef")
	x := control.Settings{Region: 1, Values: []control.SettingValue{{ID: control.SettingSecret, Value: control.SecretDigest(secret)}}}
	if x.Proven(secret) {
		t.Error("proven by nobody")
	}
	x.Prove(secret)
	key, value := x.AppendKey(nil), x.AppendValue(nil)
	if !x.Proven(secret) || x.Proven(append(secret, 'x')) || bytes.Contains(value, secret[:4]) {
		t.Errorf("settings %x", value)
	}
	for i := range value {
		forged := bytes.Clone(value)
		forged[i] ^= 1
		if y, err := control.ParseSettings(key, forged); err == nil && y.Proven(secret) {
			t.Errorf("with byte %d changed: %+v", i, y)
		}
	}
	if y, err := control.ParseSettings([]byte{5, 2}, value); err != nil || y.Proven(secret) {
		t.Errorf("in another region's name: %+v, %v", y, err)
	}
}

// TestCarried: of the types of control records links carry all but barriers, incidents and
// judged logs, and
// nothing that is not of its type's form to the last byte.
func TestCarried(t *testing.T) {
	for _, c := range controlCodecs() {
		claim, err := control.ParseClaim(c.key, c.value)
		stays := c.name == "barrier" || c.name == "incident" || c.name == "acceptance" || c.name == "judged"
		if carried := err == nil; carried == stays || carried && claim.Topic != map[bool]string{true: "flights"}[c.name != "settings"] {
			t.Errorf("ParseClaim(%s) = %+v, %v", c.name, claim, err)
		}
		if _, err := control.ParseClaim(c.key, append(c.value[:len(c.value):len(c.value)], 0)); err == nil {
			t.Errorf("ParseClaim(%s) accepts a byte too many", c.name)
		}
	}
	for _, key := range []string{"", "\x00", "\x7ftopic", "\xff"} {
		if _, err := control.ParseClaim([]byte(key), []byte{1}); err == nil {
			t.Errorf("ParseClaim(%q) accepts an unknown type", key)
		}
	}
}
