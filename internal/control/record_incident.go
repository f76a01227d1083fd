package control

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/warning"
)

// The types of Incident and Acceptance.
const (
	TypeIncident   Type = 6
	TypeAcceptance Type = 7
)

// incidentType: links do not carry it. The follower keeps those of the own region.
func incidentType() recordType { return recordType{apply: (*Follower).applyIncident} }

// acceptanceType: as incidentType.
func acceptanceType() recordType { return recordType{apply: (*Follower).applyAcceptance} }

// Proof shows that a record was written by somebody who has the deployment's idempotency
// secret. A record of version 1 has none.
type Proof [16]byte

// provenVersion is the version of records with a proof.
const provenVersion = 2

// proofOf is the proof of a record of a region, given its value without the proof.
func proofOf(region event.RegionID, secret, key, value []byte) (p Proof) {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("geogate incident record v2"))
	h.Write(event.AppendPrefixed([]byte{byte(region)}, key))
	h.Write(value)
	copy(p[:], h.Sum(nil))
	return p
}

// proven tells whether a record proves that its writer had the secret, for this region and
// under this key.
func proven(region event.RegionID, secret, key, value []byte) bool {
	n := len(value) - len(Proof{})
	if n < 1 || value[0] != provenVersion {
		return false
	}
	want := proofOf(region, secret, key, value[:n])
	return hmac.Equal(want[:], value[n:])
}

// errUnproven says that a record is not believed.
func errUnproven(what string) error {
	return fmt.Errorf("%w: %s without a proof of the idempotency secret is not believed", warning.ErrUnproven, what)
}

// Incident says that records of a log were deleted before a reader had them.
type Incident struct {
	incident.Incident
	Proof Proof
}

// Prove signs the record for a region's control topic.
func (x *Incident) Prove(region event.RegionID, secret []byte) {
	x.Proof = proofOf(region, secret, x.AppendKey(nil), x.appendValue(nil))
}

// AppendKey appends the record key: u8 type 6, 6 bytes id of the incident.
func (x Incident) AppendKey(b []byte) []byte {
	id := x.ID()
	return append(append(b, byte(TypeIncident)), id[:]...)
}

// AppendValue appends the record value: u8 version 2, u8 kind, 16 bytes topic id of the log,
// uvarint partition, u8 origin region or 0, u8 target region of a link or 0, uvarint first
// offset lost, uvarint offset after the last one lost, length-prefixed topic, length-prefixed name of
// the log, u64 Unix milliseconds when it was found, 16 bytes proof.
func (x Incident) AppendValue(b []byte) []byte { return append(x.appendValue(b), x.Proof[:]...) }

func (x *Incident) appendValue(b []byte) []byte {
	b = append(append(b, provenVersion, byte(x.Kind)), x.Log[:]...)
	b = append(binary.AppendUvarint(b, uint64(x.Partition)), byte(x.Origin), byte(x.To))
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(x.From)), uint64(x.Until))
	b = event.AppendPrefixed(event.AppendPrefixed(b, []byte(x.Topic)), []byte(x.Name))
	return binary.BigEndian.AppendUint64(b, uint64(x.Found.UnixMilli()))
}

// ParseIncident reads an incident record. Its key must be the id of what its value says.
func ParseIncident(key, value []byte) (Incident, error) {
	id, err := readIncidentKey(key, TypeIncident)
	if err != nil {
		return Incident{}, fmt.Errorf("parse incident key: %w", err)
	}
	r := event.NewReader(value)
	version := readProvenVersion(r)
	var x Incident
	x.Kind = incident.Kind(r.Uint8())
	copy(x.Log[:], r.Bytes(len(x.Log)))
	x.Partition = int32(r.UvarintMax(maxPartition))
	x.Origin, x.To = readRegionOrNone(r), readRegionOrNone(r)
	x.From, x.Until = int64(r.UvarintMax(maxOffset)), int64(r.UvarintMax(maxOffset))
	x.Topic, x.Name = readName(r), readName(r)
	x.Found = readMilliseconds(r)
	readProof(r, version, &x.Proof)
	switch {
	case r.Err() != nil:
	case x.Kind == 0:
		r.Fail("incident of kind 0")
	case x.Until <= x.From:
		r.Fail("incident from %d until %d", x.From, x.Until)
	case x.ID() != id:
		r.Fail("incident %v under the key of %v", x.ID(), id)
	}
	if err := r.Close(); err != nil {
		return Incident{}, fmt.Errorf("parse incident: %w", err)
	}
	return x, nil
}

// Acceptance says that somebody goes on without what an incident has lost.
type Acceptance struct {
	incident.Acceptance
	Proof Proof
}

// Prove signs the record for a region's control topic.
func (x *Acceptance) Prove(region event.RegionID, secret []byte) {
	x.Proof = proofOf(region, secret, x.AppendKey(nil), x.appendValue(nil))
}

// AppendKey appends the record key: u8 type 7, 6 bytes id of the incident.
func (x Acceptance) AppendKey(b []byte) []byte {
	return append(append(b, byte(TypeAcceptance)), x.ID[:]...)
}

// AppendValue appends the record value: u8 version 2, uvarint offset after the last one
// accepted, u64 Unix milliseconds, length-prefixed who, length-prefixed reason, 16 bytes
// proof.
func (x Acceptance) AppendValue(b []byte) []byte { return append(x.appendValue(b), x.Proof[:]...) }

func (x *Acceptance) appendValue(b []byte) []byte {
	b = binary.AppendUvarint(append(b, provenVersion), uint64(x.Until))
	b = binary.BigEndian.AppendUint64(b, uint64(x.At.UnixMilli()))
	return event.AppendPrefixed(event.AppendPrefixed(b, line(x.By)), line(x.Reason))
}

// ParseAcceptance reads an acceptance record.
func ParseAcceptance(key, value []byte) (x Acceptance, err error) {
	if x.ID, err = readIncidentKey(key, TypeAcceptance); err != nil {
		return Acceptance{}, fmt.Errorf("parse acceptance key: %w", err)
	}
	r := event.NewReader(value)
	version := readProvenVersion(r)
	x.Until = int64(r.UvarintMax(maxOffset))
	x.At = readMilliseconds(r)
	x.By, x.Reason = string(r.Prefixed(maxText)), string(r.Prefixed(maxText))
	readProof(r, version, &x.Proof)
	switch {
	case r.Err() != nil:
	case x.Until == 0:
		r.Fail("acceptance until 0")
	case !utf8.ValidString(x.By) || !utf8.ValidString(x.Reason):
		r.Fail("text that is not UTF-8")
	}
	if err := r.Close(); err != nil {
		return Acceptance{}, fmt.Errorf("parse acceptance: %w", err)
	}
	return x, nil
}

// line is a text as a record may have it: valid UTF-8 of at most maxText bytes.
func line(s string) []byte {
	s = strings.ToValidUTF8(s, "\uFFFD")
	for len(s) > maxText {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return []byte(s)
}

func readIncidentKey(key []byte, want Type) (id incident.ID, err error) {
	k := event.NewReader(key)
	if t := Type(k.Uint8()); t != want {
		k.Fail("control record type %d, want %d", t, want)
	}
	copy(id[:], k.Bytes(len(id)))
	return id, k.Close()
}

func readRegionOrNone(r *event.Reader) event.RegionID {
	id := event.RegionID(r.Uint8())
	if r.Err() == nil && id != 0 && !id.Valid() {
		r.Fail("region id %d is not in 0..15", id)
	}
	return id
}

// readMilliseconds reads a time. One after the year 9999 is malformed.
func readMilliseconds(r *event.Reader) time.Time {
	ms := r.Uint64()
	if r.Err() == nil && ms >= 253_402_300_800_000 {
		r.Fail("time %d", ms)
	}
	return time.UnixMilli(int64(ms)).UTC()
}

// readProvenVersion reads a version: 1, without a proof, or 2.
func readProvenVersion(r *event.Reader) uint8 {
	v := r.Uint8()
	if r.Err() == nil && v != codecVersion && v != provenVersion {
		r.Fail("record version %d is not supported", v)
	}
	return v
}

func readProof(r *event.Reader, version uint8, p *Proof) {
	if version == provenVersion {
		copy(p[:], r.Bytes(len(p)))
	}
}

// applyIncident takes a committed record; the caller holds mu. What is not proven is not
// believed: who has found the incident, if there is one, finds it again.
func (f *Follower) applyIncident(from event.RegionID, key, value []byte) error {
	if from != f.cfg.Region {
		_, err := ParseIncident(key, value)
		return err
	}
	x, err := ParseIncident(key, value)
	if err == nil && !proven(from, f.secret(), key, value) {
		err = errUnproven("an incident")
	}
	if err == nil {
		delete(f.restore, string(key))
		f.incidents.Found(x.Incident)
		return nil
	}
	f.replaced(key)
	return err
}

// applyAcceptance takes a committed record; the caller holds mu. What is not proven is not
// believed: what it would accept stays open.
func (f *Follower) applyAcceptance(from event.RegionID, key, value []byte) error {
	if from != f.cfg.Region {
		_, err := ParseAcceptance(key, value)
		return err
	}
	x, err := ParseAcceptance(key, value)
	if err == nil && !proven(from, f.secret(), key, value) {
		err = errUnproven("the acceptance of an incident")
	}
	if err == nil {
		delete(f.restore, string(key))
		f.incidents.Accept(x.Acceptance)
		return nil
	}
	f.replaced(key)
	return err
}

// secret is what proofs are made with.
func (f *Follower) secret() []byte {
	if f.cfg.Secret == nil {
		return []byte(event.DefaultIdempotencySecret)
	}
	return f.cfg.Secret
}

// replaced notes that a record that is known was written over by one that is not believed:
// compaction would leave only that, so the known one is to be written again. The caller
// holds mu.
func (f *Follower) replaced(key []byte) {
	if f.known(key) == nil {
		return
	}
	f.restore[string(key)] = true
	select {
	case f.restoring <- struct{}{}:
	default:
	}
}

// known is the record, proven, of an incident or acceptance that is known, by its key; nil if
// none is. The caller holds mu.
func (f *Follower) known(key []byte) Record {
	t, _ := TypeOf(key)
	id, err := readIncidentKey(key, t)
	if err != nil {
		return nil
	}
	e, ok := f.incidents.Get(id)
	switch {
	case ok && t == TypeIncident:
		x := Incident{Incident: e.Incident}
		x.Prove(f.cfg.Region, f.secret())
		return x
	case ok && t == TypeAcceptance && e.Acceptance != nil:
		x := Acceptance{Acceptance: *e.Acceptance}
		x.Prove(f.cfg.Region, f.secret())
		return x
	}
	return nil
}
