package control

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
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

// Incident says that records of a log were deleted before a reader had them.
type Incident struct{ incident.Incident }

// AppendKey appends the record key: u8 type 6, 6 bytes id of the incident.
func (x Incident) AppendKey(b []byte) []byte {
	id := x.ID()
	return append(append(b, byte(TypeIncident)), id[:]...)
}

// AppendValue appends the record value: u8 version, u8 kind, 16 bytes topic id of the log,
// uvarint partition, u8 origin region or 0, u8 target region of a link or 0, uvarint first
// offset lost, uvarint offset after the last one lost, length-prefixed topic, length-prefixed name of
// the log, u64 Unix milliseconds when it was found.
func (x Incident) AppendValue(b []byte) []byte {
	b = append(append(b, codecVersion, byte(x.Kind)), x.Log[:]...)
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
	readVersion(r)
	var x Incident
	x.Kind = incident.Kind(r.Uint8())
	copy(x.Log[:], r.Bytes(len(x.Log)))
	x.Partition = int32(r.UvarintMax(maxPartition))
	x.Origin, x.To = readRegionOrNone(r), readRegionOrNone(r)
	x.From, x.Until = int64(r.UvarintMax(maxOffset)), int64(r.UvarintMax(maxOffset))
	x.Topic, x.Name = readName(r), readName(r)
	x.Found = readMilliseconds(r)
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
type Acceptance struct{ incident.Acceptance }

// AppendKey appends the record key: u8 type 7, 6 bytes id of the incident.
func (x Acceptance) AppendKey(b []byte) []byte {
	return append(append(b, byte(TypeAcceptance)), x.ID[:]...)
}

// AppendValue appends the record value: u8 version, uvarint offset after the last one
// accepted, u64 Unix milliseconds, length-prefixed who, length-prefixed reason.
func (x Acceptance) AppendValue(b []byte) []byte {
	b = binary.AppendUvarint(append(b, codecVersion), uint64(x.Until))
	b = binary.BigEndian.AppendUint64(b, uint64(x.At.UnixMilli()))
	return event.AppendPrefixed(event.AppendPrefixed(b, line(x.By)), line(x.Reason))
}

// ParseAcceptance reads an acceptance record.
func ParseAcceptance(key, value []byte) (x Acceptance, err error) {
	if x.ID, err = readIncidentKey(key, TypeAcceptance); err != nil {
		return Acceptance{}, fmt.Errorf("parse acceptance key: %w", err)
	}
	r := event.NewReader(value)
	readVersion(r)
	x.Until = int64(r.UvarintMax(maxOffset))
	x.At = readMilliseconds(r)
	x.By, x.Reason = string(r.Prefixed(maxText)), string(r.Prefixed(maxText))
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

// applyIncident takes a committed record; the caller holds mu.
func (f *Follower) applyIncident(from event.RegionID, key, value []byte) error {
	x, err := ParseIncident(key, value)
	if err == nil && from == f.cfg.Region {
		f.incidents.Found(x.Incident)
	}
	return err
}

// applyAcceptance takes a committed record; the caller holds mu.
func (f *Follower) applyAcceptance(from event.RegionID, key, value []byte) error {
	x, err := ParseAcceptance(key, value)
	if err == nil && from == f.cfg.Region {
		f.incidents.Accept(x.Acceptance)
	}
	return err
}
