package control

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// TypeSettings is the type of a Settings record.
const TypeSettings Type = 5

// settingsType: links carry it. The follower keeps the latest of each region, which that
// region wrote.
func settingsType() recordType {
	return recordType{
		carried: func(key, value []byte) (Claim, error) {
			x, err := ParseSettings(key, value)
			return Claim{Type: TypeSettings, Origin: x.Region}, err
		},
		apply: (*Follower).applySettings,
	}
}

// Setting numbers a setting that must be the same in a region and in all regions. Numbers
// are never reused; one that a reader does not know it does not compare.
type Setting uint8

// The settings.
const (
	SettingWindow     Setting = 1 // u64: idempotency window in milliseconds
	SettingSecret     Setting = 2 // digest of the idempotency secret
	SettingOwnership  Setting = 3 // digest of the ownership policy, partitions left out
	SettingPartitions Setting = 4 // digest of the declared topics with their partitions
	SettingRegister   Setting = 5 // u8: how many servers hold the register; 0: there is none
	SettingLease      Setting = 6 // u64 each: duration, margin, renew, timeout in milliseconds
	SettingResidency  Setting = 7 // digest of the residency policy; empty: there is none
	SettingLimits     Setting = 8 // u64 each: the limits of batches and records
	SettingRegions    Setting = 9 // digest of the regions' names and ids
)

const (
	maxSettings     = 64
	maxSettingBytes = 64
)

// SettingValue is what one setting is: a number, or a digest that
// shows only whether two values are the same.
type SettingValue struct {
	ID    Setting
	Value []byte
}

// Settings is what a region runs with.
type Settings struct {
	Region event.RegionID
	Values []SettingValue // ids ascending
	// Proof shows that the writer had the deployment's idempotency secret ([Settings.Prove]).
	Proof [16]byte
}

// Get is the value of a setting; ok is false if the record does not have it.
func (x *Settings) Get(id Setting) (value []byte, ok bool) {
	for _, v := range x.Values {
		if v.ID == id {
			return v.Value, true
		}
	}
	return nil, false
}

// Prove signs the record with a secret.
func (x *Settings) Prove(secret []byte) { x.Proof = x.proof(secret) }

// Proven tells whether the record was written by somebody who has the secret.
func (x *Settings) Proven(secret []byte) bool {
	want := x.proof(secret)
	return hmac.Equal(want[:], x.Proof[:])
}

func (x *Settings) proof(secret []byte) (p [16]byte) {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("geogate settings record v1"))
	h.Write(x.appendValues([]byte{byte(x.Region)}))
	copy(p[:], h.Sum(nil))
	return p
}

// SecretDigest is what a record says of a secret. It tells nothing of a secret that cannot
// be guessed.
func SecretDigest(secret []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("geogate settings: idempotency secret"))
	return h.Sum(nil)[:16]
}

// AppendKey appends the record key: u8 type 5, u8 region.
func (x Settings) AppendKey(b []byte) []byte {
	return append(b, byte(TypeSettings), byte(x.Region))
}

// AppendValue appends the record value: u8 version; u8 number of settings, and for each, ids
// ascending: u8 id, and the length-prefixed value; 16 bytes proof.
func (x Settings) AppendValue(b []byte) []byte {
	return append(x.appendValues(append(b, codecVersion)), x.Proof[:]...)
}

func (x *Settings) appendValues(b []byte) []byte {
	b = append(b, byte(len(x.Values)))
	for _, v := range x.Values {
		b = event.AppendPrefixed(append(b, byte(v.ID)), v.Value)
	}
	return b
}

// ParseSettings reads a settings record.
func ParseSettings(key, value []byte) (Settings, error) {
	k := event.NewReader(key)
	if t := Type(k.Uint8()); t != TypeSettings {
		k.Fail("control record type %d, want %d", t, TypeSettings)
	}
	x := Settings{Region: k.Region()}
	if err := k.Close(); err != nil {
		return Settings{}, fmt.Errorf("parse settings key: %w", err)
	}
	r := event.NewReader(value)
	readVersion(r)
	n := int(r.Uint8())
	if n > maxSettings {
		r.Fail("%d settings", n)
	}
	last := Setting(0)
	for range n {
		id := Setting(r.Uint8())
		if r.Err() == nil && id <= last {
			r.Fail("setting %d after %d", id, last)
		}
		v := bytes.Clone(r.Prefixed(maxSettingBytes))
		if r.Err() != nil {
			break
		}
		last = id
		x.Values = append(x.Values, SettingValue{id, v})
	}
	copy(x.Proof[:], r.Bytes(len(x.Proof)))
	if err := r.Close(); err != nil {
		return Settings{}, fmt.Errorf("parse settings: %w", err)
	}
	return x, nil
}

// applySettings takes a committed record; the caller holds mu.
func (f *Follower) applySettings(from event.RegionID, key, value []byte) error {
	x, err := ParseSettings(key, value)
	if err != nil {
		return err
	}
	if x.Region != from {
		return fmt.Errorf("%w: settings of region %d in the control topic of region %d", event.ErrMalformed, x.Region, from)
	}
	f.settings[from] = x
	return nil
}

// Settings is the latest that a region has said of its settings. It proves nothing
// ([Settings.Proven]).
func (f *Follower) Settings(region event.RegionID) (x Settings, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x, ok = f.settings[region]
	return x, ok
}
