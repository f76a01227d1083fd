package ownership

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/expr"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/router"
)

// DefaultDomain is the domain of topics that no domain of the file matches.
const DefaultDomain = "default"

// Mode says which regions may write a domain.
type Mode uint8

// The modes.
const (
	// MultiWriter lets every region write, each its own unit.
	MultiWriter Mode = iota + 1
	// SingleRegion lets one region write the whole domain, which is one unit.
	SingleRegion
	// ByKey gives every record to the region that an expression names; each region
	// has its own unit.
	ByKey
)

// String is the mode's name in files.
func (m Mode) String() string {
	switch m {
	case MultiWriter:
		return "multi_writer"
	case SingleRegion:
		return "single_region"
	case ByKey:
		return "by_key"
	}
	return fmt.Sprintf("mode-%d", uint8(m))
}

// Domain is a set of topics with one ownership rule.
type Domain struct {
	Name string
	Kind conflict.Kind
	Mode Mode
	// Rule resolves concurrent writes of an entity; 0 on events topics, where
	// nothing is resolved.
	Rule event.Rule
	// Partitions is the partition count of the domain's declared topics, 0 when
	// the file does not say.
	Partitions int32
	// Owner is the region that claims a single_region domain when nobody ever
	// owned it; who owns it now, the register says.
	Owner string
	// Home gives the region that a record of a by_key domain belongs to.
	Home *expr.Text
}

// Unit is what a region owns of the domain: <domain>/<region>, or <domain> where
// one region has all of it.
func (d Domain) Unit(region string) string {
	if d.Mode == SingleRegion {
		return d.Name
	}
	return d.Name + "/" + region
}

// Region gives the region that a record of a by_key domain belongs to, as the
// domain's expression says for a write in region here. An error, like any text that
// is no region's name, means that the record has no home; it holds no key and no
// value.
func (d Domain) Region(key []byte, headers []event.Header, topic, here string) (string, error) {
	home, err := d.Home.Value(&expr.Input{Key: key, Headers: headers, Topic: topic, From: here, To: here})
	if err != nil {
		return "", fmt.Errorf("find home of record: %w", err)
	}
	return home, nil
}

// UnitDomain splits a unit's name. The region is empty for a single_region
// domain's.
func UnitDomain(unit string) (domain, region string) {
	domain, region, _ = strings.Cut(unit, "/")
	return domain, region
}

// Declared is a topic that the ownership file names without a wildcard. It is
// created with so many partitions, or checked to have them, at start.
type Declared struct {
	Topic string
	// Partitions is 0 when the file does not say; the topic must then exist.
	Partitions int32
	Domain     Domain
}

// Policy is the content of an ownership file. It is immutable. The zero Policy
// puts every topic into the default domain.
type Policy struct {
	domains []domainRule
}

type domainRule struct {
	domain Domain
	match  []router.Pattern
}

// Domain gives the domain of a topic: the first that matches, else the default
// one, whose topics are events that every region writes.
func (p *Policy) Domain(topic string) Domain {
	for _, rule := range p.domains {
		if slices.ContainsFunc(rule.match, func(m router.Pattern) bool { return m.Match(topic) }) {
			return rule.domain
		}
	}
	return Domain{Name: DefaultDomain, Kind: conflict.Events, Mode: MultiWriter}
}

// Domains gives the domains in the order of the file, the default one last.
func (p *Policy) Domains() []Domain {
	out := make([]Domain, 0, len(p.domains)+1)
	for _, rule := range p.domains {
		out = append(out, rule.domain)
	}
	return append(out, Domain{Name: DefaultDomain, Kind: conflict.Events, Mode: MultiWriter})
}

// Home gives the units that a region claims when nobody ever owned them.
func (p *Policy) Home(region string) []string {
	var out []string
	for _, d := range p.Domains() {
		if d.Mode != SingleRegion || d.Owner == region {
			out = append(out, d.Unit(region))
		}
	}
	return out
}

// HomeOf gives the region that claims a unit when nobody ever owned it; "" for a
// unit of no domain.
func (p *Policy) HomeOf(unit string) string {
	name, region := UnitDomain(unit)
	for _, d := range p.Domains() {
		switch {
		case d.Name != name || (region == "") != (d.Mode == SingleRegion):
		case region == "":
			return d.Owner
		default:
			return region
		}
	}
	return ""
}

// Check finds what is wrong with the policy in a deployment with these regions.
func (p *Policy) Check(t *router.Topology) error {
	for _, d := range p.domains {
		if _, ok := t.ID(d.domain.Owner); d.domain.Mode == SingleRegion && !ok {
			return fmt.Errorf("ownership policy: domain %s: owner %q is no region of the deployment", d.domain.Name, d.domain.Owner)
		}
	}
	return nil
}

// Declared gives the topics that the file names without a wildcard, in its
// order.
func (p *Policy) Declared() []Declared {
	var out []Declared
	for _, rule := range p.domains {
		for _, m := range rule.match {
			if topic, ok := m.Literal(); ok {
				out = append(out, Declared{Topic: topic, Partitions: rule.domain.Partitions, Domain: rule.domain})
			}
		}
	}
	return out
}

// Digests are two digests of what the file says, the same for two files that say the same: of
// the domains, and of the topics that it declares with their partitions.
func (p *Policy) Digests() (domains, partitions [16]byte) {
	var a, b []byte
	for _, rule := range p.domains {
		d, home := rule.domain, ""
		if d.Home != nil {
			home = d.Home.String()
		}
		for _, text := range []string{d.Name, d.Owner, home} {
			a = event.AppendPrefixed(a, []byte(text))
		}
		a = append(a, byte(d.Kind), byte(d.Mode), byte(d.Rule))
		a = binary.AppendUvarint(a, uint64(len(rule.match)))
		for _, m := range rule.match {
			a = event.AppendPrefixed(a, []byte(m.String()))
		}
	}
	for _, d := range p.Declared() {
		b = binary.AppendUvarint(event.AppendPrefixed(b, []byte(d.Topic)), uint64(d.Partitions))
	}
	x, y := sha256.Sum256(a), sha256.Sum256(b)
	return [16]byte(x[:16]), [16]byte(y[:16])
}

// LoadPolicy reads the ownership file at path; see [ParsePolicy]. A file
// that cannot be read is an error: a policy that is configured must be there.
func LoadPolicy(path string) (*Policy, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read ownership policy: %w", err)
	}
	return ParsePolicy(path, src)
}

// policyKind is the kind of an ownership file.
const policyKind = "OwnershipPolicy"

// ParsePolicy reads an ownership policy, which messages call name. The error
// is a [*strict.Errors] with all mistakes and their places.
func ParsePolicy(name string, src []byte) (*Policy, error) {
	var file PolicyFile
	if err := strict.CheckKind(name, src, policyKind); err != nil {
		return nil, err
	}
	doc, err := strict.Read(name, src, &file)
	if err != nil {
		return nil, err
	}
	policy, err := file.compile()
	return policy, doc.Locate(err)
}

// PolicyFile is the shape of an ownership file, version 1.
type PolicyFile struct {
	Version int           `yaml:"version"`
	Kind    string        `yaml:"kind"`
	Domains []DomainEntry `yaml:"domains"`
}

// DomainEntry is one domain of a [PolicyFile].
type DomainEntry struct {
	Name       string   `yaml:"name"`
	Match      []string `yaml:"match"`
	Kind       string   `yaml:"kind"`
	Mode       string   `yaml:"mode"`
	Policy     string   `yaml:"policy"`
	Partitions int32    `yaml:"partitions"`
	// Owner is a region's name where the mode is single_region, an expression over
	// key and headers that gives one where it is by_key.
	Owner string `yaml:"owner"`
	// OnForeignWrite says what becomes of a write in a region that does not own
	// it: reject.
	OnForeignWrite string `yaml:"on_foreign_write"`
}

// maxPartitions bounds a slip of the keyboard; more partitions than this in one
// topic is beyond what a cluster is run with.
const maxPartitions = 100_000

func (f *PolicyFile) compile() (*Policy, error) {
	var bad strict.Problems
	if f.Version != 1 {
		bad.Add(strict.At("version"), "must be 1, the version of this file's form")
	}
	if f.Kind != policyKind {
		bad.Add(strict.At("kind"), "must be %s", policyKind)
	}
	policy := &Policy{}
	named := make(map[string]bool)
	for i, entry := range f.Domains {
		at := strict.At("domains", i)
		rule := entry.compile(&bad, at)
		switch {
		case entry.Name == DefaultDomain:
			bad.Add(at.And("name"), "%s is the domain of unmatched topics and cannot be given", DefaultDomain)
		case named[entry.Name]:
			bad.Add(at.And("name"), "domain %s is there already", entry.Name)
		}
		named[entry.Name] = true
		for j, m := range rule.match {
			if topic, ok := m.Literal(); ok {
				policy.reachable(&bad, at.And("match", j), topic)
			}
		}
		policy.domains = append(policy.domains, rule)
	}
	if err := bad.Err(); err != nil {
		return nil, err
	}
	return policy, nil
}

// reachable refuses a topic that an earlier domain takes: the first match wins,
// so the line would have no effect, and its author believes that it has.
func (p *Policy) reachable(bad *strict.Problems, at strict.Path, topic string) {
	if d := p.Domain(topic); d.Name != DefaultDomain {
		bad.Add(at, "topic %s is matched by domain %s before, and the first match wins", topic, d.Name)
	}
}

func (e DomainEntry) compile(bad *strict.Problems, at strict.Path) domainRule {
	rule := domainRule{domain: Domain{Name: e.Name, Partitions: e.Partitions}}
	if err := router.CheckAlias(e.Name); err != nil {
		bad.Add(at.And("name"), "%q is no domain name, want 1 to 31 of a-z, 0-9 and -, first a letter", e.Name)
	}
	if len(e.Match) == 0 {
		bad.Add(at.And("match"), "needs at least one topic or pattern")
	}
	for j, text := range e.Match {
		m, err := router.ParsePattern(text)
		if err != nil {
			bad.Add(at.And("match", j), "%v", err)
			continue
		}
		if topic, ok := m.Literal(); ok {
			if err := router.CheckTopic(topic); err != nil {
				bad.Add(at.And("match", j), "%v", err)
			} else if router.Internal(topic) {
				bad.Add(at.And("match", j), "%s is an internal topic", topic)
			}
		}
		rule.match = append(rule.match, m)
	}
	if e.Partitions < 0 || e.Partitions > maxPartitions {
		bad.Add(at.And("partitions"), "%d is not within 1 to %d", e.Partitions, maxPartitions)
	}
	rule.domain.Kind = e.kind(bad, at.And("kind"))
	rule.domain.Mode = e.mode(bad, at.And("mode"))
	rule.domain.Rule = e.rule(bad, at.And("policy"), rule.domain.Kind)
	e.owner(bad, at, &rule.domain)
	return rule
}

// owner reads who owns a domain's records, and what becomes of other regions'
// writes.
func (e DomainEntry) owner(bad *strict.Problems, at strict.Path, d *Domain) {
	switch d.Mode {
	case MultiWriter:
		if e.Owner != "" {
			bad.Add(at.And("owner"), "in a multi_writer domain every region owns what it writes")
		}
	case SingleRegion:
		if err := router.CheckAlias(e.Owner); err != nil {
			bad.Add(at.And("owner"), "needs to name the region that owns the domain")
		}
		d.Owner = e.Owner
	case ByKey:
		if e.Owner == "" {
			bad.Add(at.And("owner"), "needs an expression over key and headers that gives a region, like headers[\"home\"]")
			return
		}
		home, err := expr.CompileText(e.Owner)
		if err != nil {
			bad.Add(at.And("owner"), "needs an expression over key and headers that gives a region, like headers[\"home\"]: %v", err)
		}
		d.Home = home
	}
	switch e.OnForeignWrite {
	case "", "reject":
	case "forward":
		bad.Add(at.And("on_foreign_write"), "forward comes with a later version; this one knows reject")
	default:
		bad.Unknown(at.And("on_foreign_write"), "value", e.OnForeignWrite, "reject")
	}
}

func (e DomainEntry) kind(bad *strict.Problems, at strict.Path) conflict.Kind {
	switch e.Kind {
	case "events":
		return conflict.Events
	case "entity":
		return conflict.Entities
	case "":
		bad.Add(at, "needs to say events or entity")
	default:
		bad.Unknown(at, "kind", e.Kind, "events", "entity")
	}
	return 0
}

func (e DomainEntry) mode(bad *strict.Problems, at strict.Path) Mode {
	switch e.Mode {
	case "multi_writer":
		return MultiWriter
	case "single_region":
		return SingleRegion
	case "by_key":
		return ByKey
	case "":
		bad.Add(at, "needs to say multi_writer, single_region or by_key")
	default:
		bad.Unknown(at, "mode", e.Mode, "multi_writer", "single_region", "by_key")
	}
	return 0
}

func (e DomainEntry) rule(bad *strict.Problems, at strict.Path, kind conflict.Kind) event.Rule {
	if kind == conflict.Events {
		if e.Policy != "" {
			bad.Add(at, "events topics have no conflict policy, each event stays")
		}
		return 0
	}
	policy, ok := conflict.PolicyNamed(e.Policy)
	if ok {
		return policy.Rule
	}
	names := conflict.PolicyNames()
	switch e.Policy {
	case "home", "counter", "update_wins", "delete_wins", "field", "or_set", "map", "merge":
		bad.Add(at, "policy %s comes with a later version; this one knows %s", e.Policy, alternatives(names))
	default:
		bad.Unknown(at, "policy", e.Policy, names...)
	}
	return 0
}

// alternatives joins names as a sentence lists them: a, b and c.
func alternatives(names []string) string {
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}
