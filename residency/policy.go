package residency

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/expr"
	"github.com/geogate/geogate/internal/names"
)

// Effect is what becomes of the records of a topic on a way.
type Effect uint8

// The effects. The zero Effect denies.
const (
	Deny Effect = iota
	Allow
	// PerRecord: each record is decided for itself.
	PerRecord
)

// String is the effect's name for people.
func (e Effect) String() string {
	switch e {
	case Deny:
		return "deny"
	case Allow:
		return "allow"
	case PerRecord:
		return "per record"
	}
	return fmt.Sprintf("effect-%d", uint8(e))
}

// Policy is the content of a policy file, checked and compiled. It is immutable
// and safe for concurrent use.
type Policy struct {
	Name     string
	Revision int64
	// Digest is the SHA-256 of the file's bytes.
	Digest [sha256.Size]byte
	MaxAge time.Duration

	rules []*rule // by id
}

type rule struct {
	id       string
	effect   Effect // Allow or Deny
	topics   []names.Glob
	from, to places
	when     *expr.Predicate // nil: every record
}

// places is a set of regions.
type places struct {
	all   bool
	names []string
}

func (p places) has(region string) bool { return p.all || slices.Contains(p.names, region) }

func (r *rule) speaksOf(topic, from, to string) bool {
	return r.from.has(from) && r.to.has(to) && slices.ContainsFunc(r.topics, func(g names.Glob) bool { return g.Match(topic) })
}

// SHA256 is the digest in hexadecimal.
func (p *Policy) SHA256() string { return hex.EncodeToString(p.Digest[:]) }

// Rules are the ids of the policy's rules, sorted.
func (p *Policy) Rules() []string {
	out := make([]string, len(p.rules))
	for i, r := range p.rules {
		out[i] = r.id
	}
	return out
}

// Ruling is what a policy says about a topic on one way. It is immutable and safe
// for concurrent use.
type Ruling struct {
	Topic, From, To string
	Effect          Effect
	// Rule is the rule that decides for all records; DefaultRule when no rule
	// allows any; empty when each record is decided for itself.
	Rule string
	// Version is that of the Guard which gave the ruling, 0 otherwise.
	Version uint64
	// Revision and Digest are the policy's.
	Revision int64
	Digest   [sha256.Size]byte

	deny, allow []*rule // that decide for each record, by id; one without predicate is the only one
}

// Compile finds out what the policy says about a topic on the way from its origin
// region to another.
func (p *Policy) Compile(topic, from, to string) *Ruling {
	r := p.ruling(topic, from, to)
	var always *rule // that allows whatever the record
	for _, x := range p.rules {
		if !x.speaksOf(topic, from, to) {
			continue
		}
		switch {
		case x.effect == Deny && x.when == nil:
			r = p.ruling(topic, from, to)
			r.Rule = x.id
			return r
		case x.effect == Deny:
			r.deny = append(r.deny, x)
		case x.when == nil && always == nil:
			always = x
		case x.when != nil:
			r.allow = append(r.allow, x)
		}
	}
	if always != nil {
		r.allow = []*rule{always}
	}
	switch {
	case len(r.allow) == 0:
		// Denied one way or another: no record need be looked at.
		r.Effect, r.Rule, r.deny = Deny, DefaultRule, nil
	case always != nil && len(r.deny) == 0:
		r.Effect, r.Rule = Allow, always.id
	default:
		r.Effect = PerRecord
	}
	return r
}

// ruling denies everything.
func (p *Policy) ruling(topic, from, to string) *Ruling {
	return &Ruling{Topic: topic, From: from, To: to, Revision: p.Revision, Digest: p.Digest}
}

// Reason says the ruling for people.
func (r *Ruling) Reason() string {
	switch {
	case r.Effect == PerRecord:
		return "rules decide for each record"
	case r.Effect == Allow:
		return "rule " + r.Rule + " allows"
	case r.Rule == DefaultRule:
		return "no rule allows it"
	case r.Rule == StoppedRule:
		return "the policy file has not loaded for max_age, so nothing leaves"
	}
	return "rule " + r.Rule + " denies"
}

// Record is what rules may look at.
type Record struct {
	Key     []byte // nil is null
	Headers []event.Header
}

// Verdict is the decision about one record.
type Verdict struct {
	Allow bool
	// Rule decided: the rule that denies or allows, or DefaultRule.
	Rule string
	// Doubt tells that a predicate could not be decided and that this is why the
	// record is denied.
	Doubt bool
}

// Decide decides about one record.
func (r *Ruling) Decide(rec *Record) Verdict {
	if r.Effect != PerRecord {
		return Verdict{Allow: r.Effect == Allow, Rule: r.Rule}
	}
	in := expr.Input{Key: rec.Key, Headers: rec.Headers, Topic: r.Topic, From: r.From, To: r.To}
	for _, x := range r.deny {
		if matched, err := x.when.Match(&in); err != nil || matched {
			return Verdict{Rule: x.id, Doubt: err != nil}
		}
	}
	doubt := false
	for _, x := range r.allow {
		if x.when == nil {
			return Verdict{Allow: true, Rule: x.id}
		}
		matched, err := x.when.Match(&in)
		if err == nil && matched {
			return Verdict{Allow: true, Rule: x.id}
		}
		doubt = doubt || err != nil
	}
	return Verdict{Rule: DefaultRule, Doubt: doubt}
}

// Step is what one rule makes of a record, for people who ask why.
type Step struct {
	Rule    string `json:"rule"`
	Effect  string `json:"effect"`
	Outcome string `json:"outcome"` // matches, does not match, or why it cannot be decided
	Decides bool   `json:"decides"`
}

// Explain tells for every rule of the policy that speaks of the way what it makes
// of the record, deny rules first, and which decides. No rule: none speaks of it.
func (p *Policy) Explain(topic, from, to string, rec *Record) ([]Step, Verdict) {
	v := p.Compile(topic, from, to).Decide(rec)
	in := expr.Input{Key: rec.Key, Headers: rec.Headers, Topic: topic, From: from, To: to}
	var steps []Step
	for _, effect := range []Effect{Deny, Allow} {
		for _, x := range p.rules {
			if x.effect != effect || !x.speaksOf(topic, from, to) {
				continue
			}
			s := Step{Rule: x.id, Effect: effect.String(), Outcome: "matches", Decides: x.id == v.Rule}
			if x.when != nil {
				switch matched, err := x.when.Match(&in); {
				case err != nil && effect == Deny:
					s.Outcome = err.Error() + ", so it matches"
				case err != nil:
					s.Outcome = err.Error() + ", so it does not match"
				case !matched:
					s.Outcome = "does not match"
				}
			}
			steps = append(steps, s)
		}
	}
	return steps, v
}
