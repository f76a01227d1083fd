package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/warning"
)

// settings compares what an instance runs with, as far as it must be the same in a region and
// between regions, with what the regions have written to control.
//
// A record of the own region that says otherwise refuses the start where two instances that
// differ would do harm, if it is proven: it was written by somebody who has the secret. All
// else, and what other regions say, is a warning, since a change may be on its way from one
// instance to the next.
type settings struct {
	node   *Node
	secret []byte
	accept bool // what the own region's record says does not refuse the start

	mu      sync.Mutex // guards what follows
	written []byte     // value of the record that this process wrote, or found there already
}

const (
	// settingsWait bounds one write of the own record.
	settingsWait = 15 * time.Second
	// settingsEvery is how often a change of the residency policy is looked for.
	settingsEvery = 30 * time.Second
)

// own is what the instance runs with now; a residency policy can change.
func (s *settings) own() control.Settings {
	n := s.node
	x := control.Settings{Region: n.own}
	add := func(id control.Setting, value []byte) {
		x.Values = append(x.Values, control.SettingValue{ID: id, Value: value})
	}
	lease := n.cfg.NATS.Lease
	add(control.SettingWindow, milliseconds(n.cfg.Idempotency.Window))
	add(control.SettingSecret, control.SecretDigest(s.secret))
	rules, partitions := n.policy.Digests()
	add(control.SettingOwnership, rules[:])
	add(control.SettingPartitions, partitions[:])
	if n.cfg.NATS.Register() {
		add(control.SettingRegister, []byte{byte(n.cfg.NATS.voters())})
		add(control.SettingLease, milliseconds(lease.Duration, lease.Margin, lease.Renew, lease.Timeout))
	} else {
		add(control.SettingRegister, []byte{0})
	}
	var residency []byte
	if n.residency != nil {
		digest, _ := hex.DecodeString(n.residency.Guard().Status().SHA256)
		residency = digest[:min(len(digest), digestSize)]
	}
	add(control.SettingResidency, residency)
	var limits []byte
	l := n.cfg.Limits
	for _, v := range []int64{int64(l.BatchUnfolded), int64(l.RecordHeaders), int64(l.HeaderBytes), int64(l.Key)} {
		limits = binary.BigEndian.AppendUint64(limits, uint64(v))
	}
	add(control.SettingLimits, limits)
	add(control.SettingRegions, n.regionsDigest())
	x.Prove(s.secret)
	return x
}

// secretOf is the secret that keys are hashed with: the one from the file, or the public one.
func secretOf(configured []byte) []byte {
	if configured == nil {
		return []byte(event.DefaultIdempotencySecret)
	}
	return configured
}

// digestSize is the size of a digest in a record of settings.
const digestSize = 16

// milliseconds encodes durations, u64 each.
func milliseconds(all ...time.Duration) (b []byte) {
	for _, d := range all {
		b = binary.BigEndian.AppendUint64(b, uint64(d.Milliseconds()))
	}
	return b
}

// regionsDigest is a digest of the deployment's regions.
func (n *Node) regionsDigest() []byte {
	h := sha256.New()
	for _, r := range n.topology.Regions() { // by id
		h.Write(append([]byte{byte(r.ID), byte(len(r.Name))}, r.Name...))
	}
	return h.Sum(nil)[:digestSize]
}

// record is the value of the own record, which is all that a link carries of settings.
func (s *settings) record() []byte { return s.own().AppendValue(nil) }

// admit compares the settings with those that the region ran with before, refuses them or
// writes them down. It comes after control was read and before anything is written.
func (s *settings) admit(ctx context.Context) error {
	own := s.own()
	before, ok := s.node.control.Settings(s.node.own)
	if ok {
		proven := before.Proven(s.secret)
		for _, d := range s.differences(&own, &before, false) {
			if d.refuses && proven && !s.accept {
				return fmt.Errorf("%w: %s, and instances of region %s ran with another: with both at work, regions would not come to the same result. "+
					"Set the old value again; or, to change it, stop all instances of the region, change it in the other regions, too, and start once with --accept-settings",
					ErrRefused, d.text, s.node.cfg.Region)
			}
			s.node.log.Warn("a setting is not what instances of the region ran with before", "difference", d.text, "proven", proven)
		}
	}
	if ok && bytes.Equal(before.AppendValue(nil), own.AppendValue(nil)) {
		s.setWritten(own.AppendValue(nil))
		return nil
	}
	return s.write(ctx, own)
}

// Run writes the settings again when they have changed, until the context ends. The first
// time they are written by admit.
func (s *settings) Run(ctx context.Context) error {
	tick := time.NewTicker(settingsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if own := s.own(); s.isOutdated(&own) {
			if err := s.write(ctx, own); err != nil && ctx.Err() == nil {
				s.node.log.Warn("cannot write the settings that other instances compare; will try again", "err", err)
			}
		}
	}
}

// isOutdated tells whether this process has written settings, and others than these.
func (s *settings) isOutdated(own *control.Settings) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written != nil && !bytes.Equal(s.written, own.AppendValue(nil))
}

func (s *settings) write(ctx context.Context, own control.Settings) error {
	ctx, cancel := context.WithTimeout(ctx, settingsWait)
	defer cancel()
	if err := control.Write(ctx, s.node.client, control.TopicControl, own); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	s.setWritten(own.AppendValue(nil))
	return nil
}

func (s *settings) setWritten(value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = value
}

// difference is a setting that is not the same.
type difference struct {
	text    string
	refuses bool // two instances of one region must not run with both
}

// differences compares what the instance runs with to what a record says. Settings that one
// of the two does not have are not compared, nor, with another region, those that may differ
// there.
func (s *settings) differences(own, other *control.Settings, peer bool) (out []difference) {
	for _, v := range own.Values {
		theirs, ok := other.Get(v.ID)
		if !ok || bytes.Equal(theirs, v.Value) || peer && v.ID == control.SettingResidency {
			continue
		}
		text, refuses := describeSetting(v.ID, v.Value, theirs)
		out = append(out, difference{text, refuses})
	}
	return out
}

// describeSetting says what differs, and whether two instances of one region must not run
// with both values. Digests are not shown: they tell nothing to a reader.
func describeSetting(id control.Setting, own, theirs []byte) (text string, refuses bool) {
	switch id {
	case control.SettingWindow:
		a, b := duration(own), duration(theirs)
		return fmt.Sprintf("idempotency.window is %s here, not %s", a, b), a < b
	case control.SettingSecret:
		return "the secret in idempotency.secret_file is another one here", false
	case control.SettingOwnership:
		return "the ownership policy (policies.ownership) has other domains here", false
	case control.SettingPartitions:
		return "the ownership policy (policies.ownership) declares other partitions here", true
	case control.SettingRegister:
		return fmt.Sprintf("the ownership register (nats) is %s here, not %s", registerName(own), registerName(theirs)), false // noRegister refuses
	case control.SettingLease:
		return "the times in nats.lease are others here", false
	case control.SettingResidency:
		return "the residency policy (policies.residency) is another one here", false
	case control.SettingLimits:
		return "the limits of batches and records (limits) are others here", true
	case control.SettingRegions:
		return "the regions of the deployment (regions) have other names or ids here", false
	}
	return fmt.Sprintf("setting %d differs", id), false
}

func duration(b []byte) time.Duration {
	if len(b) != 8 {
		return 0
	}
	return time.Duration(binary.BigEndian.Uint64(b)) * time.Millisecond
}

func registerName(b []byte) string {
	switch {
	case len(b) != 1:
		return "unknown"
	case b[0] == 0:
		return "not configured"
	case b[0] == 1:
		return modeSolo
	}
	return modeQuorum
}

// Warnings implements warner.
func (s *settings) Warnings(out *warning.List) {
	own := s.own()
	for _, r := range s.node.topology.Regions() {
		theirs, ok := s.node.control.Settings(r.ID)
		if !ok {
			continue
		}
		peer := r.ID != s.node.own
		var texts []string
		for _, d := range s.differences(&own, &theirs, peer) {
			texts = append(texts, d.text)
		}
		if len(texts) == 0 {
			continue
		}
		who := "another instance of the region runs, or ran, with other settings"
		if peer {
			who = "region " + r.Name + " runs with other settings"
		}
		out.Add(warning.SettingsDisagree, r.Name, "%s: %s. Use the same settings everywhere; this is expected while a change is rolled out", who, strings.Join(texts, "; "))
	}
}

var _ warner = (*settings)(nil)
