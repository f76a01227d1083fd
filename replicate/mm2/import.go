package mm2

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/router"
)

// maxClusters is how many regions a deployment may have.
const maxClusters = 15

// DefaultExclude is the default of topics.exclude in Apache Kafka 4 (KIP-1074). Earlier versions
// excluded every topic whose name ends in .internal or -internal.
const DefaultExclude = `mm2.*\.internal, .*\.replica, __.*`

// Cluster is a cluster of the file.
type Cluster struct {
	Alias string   `json:"alias"`
	Seeds []string `json:"seeds"`
	// TLS and SASL are how it is reached; nil if the file asks for neither, or if a setting
	// could not be taken over. They name the file's own PEM files, and those in Write.
	TLS  *connect.TLS  `json:"-"`
	SASL *connect.SASL `json:"-"`
	// LeftOut tells that the file secures the connection in a way that could not be taken over:
	// TLS and SASL are nil, and the cluster is not to be reached like that.
	LeftOut bool `json:"connection_left_out,omitempty"`
	// Write are the files that TLS and SASL name and that somebody has to write.
	Write []NewFile `json:"write,omitempty"`
}

// NewFile is a file that somebody has to write: it has a secret in it, or what is in a Java key
// store.
type NewFile struct {
	File string `json:"file"`
	What string `json:"what"` // to write into it, in words
}

// Flow is a direction of replication that the file enables.
type Flow struct {
	From    string   `json:"from"`
	To      string   `json:"to"`
	Include []string `json:"include"` // patterns of a link
	Exclude []string `json:"exclude"`
}

// Result says what became of one setting.
type Result struct {
	// Line is the setting's line, from 1; 0 is a default of MirrorMaker 2 that the file does
	// not change.
	Line int    `json:"line"`
	Key  string `json:"key"`
	// Value is as in the file, *** in the place of what may be a secret. Key is *** too where
	// a line is probably the rest of a value.
	Value   string  `json:"value"`
	Outcome Outcome `json:"outcome"`
	// To is the member of geogate's configuration that holds it, or "".
	To   string `json:"to,omitempty"`
	Note string `json:"note,omitempty"`
}

// Import is what a file becomes in geogate.
type Import struct {
	Clusters []Cluster `json:"clusters"`
	Flows    []Flow    `json:"flows"`
	Results  []Result  `json:"settings"` // in the order of lines, then defaults
}

// Unknown are the settings that are probably misspelt.
func (im *Import) Unknown() (out []Result) {
	for _, r := range im.Results {
		if r.Outcome == Unknown {
			out = append(out, r)
		}
	}
	return out
}

// importer holds what was read while settings are judged.
type importer struct {
	file     string
	clusters []string
	settings map[string]Setting           // by key: the last one counts
	security map[string]map[string]Result // by cluster and name, of settings that connections read
	secrets  string                       // directory of new files
	results  []Result
	bad      []error
}

// ReadFile reads the contents of a file and says what becomes of each setting; file is its name
// in errors, and secrets the directory of the [NewFile]s. The error is an [errors.Join] of all
// mistakes that keep a configuration from being written, each a [*LineError]: no clusters,
// missing brokers, names that regions cannot have, expressions that RE2 lacks, a replication
// policy whose copies have other names than <alias>.<topic>.
func ReadFile(file string, src []byte, secrets string) (*Import, error) {
	settings, err := ReadProperties(file, src)
	if err != nil {
		return nil, err
	}
	m := importer{file: file, settings: make(map[string]Setting, len(settings)), security: make(map[string]map[string]Result), secrets: secrets}
	for _, s := range settings {
		m.settings[s.Key] = s
	}
	if !m.readClusters() {
		return nil, errors.Join(m.bad...)
	}
	im := Import{Clusters: m.seeds()}
	for _, from := range m.clusters {
		for _, to := range m.clusters {
			if from != to && m.enabled(from, to) {
				im.Flows = append(im.Flows, m.flow(from, to))
			}
		}
	}
	if len(im.Flows) == 0 && len(m.bad) == 0 {
		m.fail(m.settings["clusters"], "no flow is enabled: write <from>-><to>.enabled = true")
	}
	if len(m.bad) > 0 {
		return nil, errors.Join(m.bad...)
	}
	m.judge(settings)
	im.Results = m.results
	return &im, nil
}

func (m *importer) fail(at Setting, format string, args ...any) {
	m.bad = append(m.bad, &LineError{File: m.file, Line: at.Line, Err: fmt.Errorf(format, args...)})
}

func (m *importer) readClusters() bool {
	s, ok := m.settings["clusters"]
	if !ok {
		m.fail(s, "no clusters: write the aliases of the clusters, like clusters = us, eu")
		return false
	}
	for _, alias := range splitList(s.Value) {
		switch err := router.CheckAlias(alias); {
		case err != nil:
			m.fail(s, "alias %q cannot be a region's name: use 1 to 31 of a-z, 0-9 and -, beginning with a letter; copies are called <alias>.<topic>, so another alias gives them other names", alias)
		case slices.Contains(m.clusters, alias):
			m.fail(s, "alias %s is in the list twice", alias)
		default:
			m.clusters = append(m.clusters, alias)
		}
	}
	if len(m.clusters) > maxClusters {
		m.fail(s, "%d clusters, but a geogate deployment has at most %d regions", len(m.clusters), maxClusters)
	}
	return len(m.bad) == 0
}

func (m *importer) seeds() (out []Cluster) {
	for _, alias := range m.clusters {
		s, ok := m.clusterSetting(alias, "bootstrap.servers")
		c := Cluster{Alias: alias, Seeds: splitList(s.Value)}
		switch {
		case !ok || len(c.Seeds) == 0:
			m.fail(m.settings["clusters"], "cluster %s has no brokers: write %s.bootstrap.servers", alias, alias)
		case strings.Contains(s.Value, "${"):
			m.fail(s, "%s has a value from a configuration provider, which cannot be looked up: write the addresses", s.Key)
		}
		m.connection(&c)
		out = append(out, c)
	}
	return out
}

// clusterSetting is a setting of a cluster: its own, or the one of the whole file.
func (m *importer) clusterSetting(alias, name string) (Setting, bool) {
	return m.firstOf(alias+"."+name, name)
}

// flowSetting is a setting of a flow: its own, or the one of the whole file.
func (m *importer) flowSetting(from, to, name string) (Setting, bool) {
	return m.firstOf(flowPrefix(from, to)+name, name)
}

func (m *importer) firstOf(keys ...string) (Setting, bool) {
	for _, key := range keys {
		if s, ok := m.settings[key]; ok {
			return s, true
		}
	}
	return Setting{}, false
}

func flowPrefix(from, to string) string { return from + "->" + to + "." }

// enabled tells whether MirrorMaker 2 runs the flow: only the flow's own setting counts, and only "true".
func (m *importer) enabled(from, to string) bool {
	return strings.EqualFold(m.settings[flowPrefix(from, to)+"enabled"].Value, "true")
}

func (m *importer) flow(from, to string) Flow {
	f := Flow{From: from, To: to, Include: []string{"*"}}
	if s, ok := m.flowSetting(from, to, "topics"); ok {
		f.Include = m.patterns(s)
		if len(splitList(s.Value)) == 0 {
			m.fail(s, "%s is empty, so nothing is replicated: write topics, or set %senabled to false", s.Key, flowPrefix(from, to))
		}
	}
	exclude, ok := m.flowSetting(from, to, "topics.exclude")
	if !ok {
		exclude, ok = m.flowSetting(from, to, "topics.blacklist") // its name before KIP-629
	}
	if !ok {
		exclude.Value = DefaultExclude
	}
	f.Exclude = m.patterns(exclude)
	for _, p := range m.ownTopics(from) {
		if !slices.Contains(f.Exclude, p) {
			f.Exclude = append(f.Exclude, p)
		}
	}
	if s, ok := m.flowSetting(from, to, "replication.policy.class"); ok && policyName(s.Value) != "DefaultReplicationPolicy" {
		m.fail(s, "%s: links name copies <alias>.<topic> only, as DefaultReplicationPolicy does", s.Value)
	}
	if s, ok := m.flowSetting(from, to, "replication.policy.separator"); ok && s.Value != "." {
		m.fail(s, "links name copies <alias>.<topic>, with a dot, and cannot use the separator %q", s.Value)
	}
	return f
}

// ownTopics are patterns of topics that MirrorMaker 2 keeps in a cluster for itself, and of its
// copies from other clusters, which links never copy on to a third one.
func (m *importer) ownTopics(cluster string) []string {
	out := []string{"heartbeats", "mm2*.internal", "*.checkpoints.internal"}
	for _, alias := range m.clusters {
		if alias != cluster {
			out = append(out, router.RemoteName(alias, "*"))
		}
	}
	return out
}

func policyName(class string) string { return class[strings.LastIndexByte(class, '.')+1:] }

func (m *importer) patterns(s Setting) []string {
	out, err := Patterns(s.Value)
	if err != nil {
		m.fail(s, "%s: %w", s.Key, err)
	}
	return out
}

// judge says of every setting what becomes of it.
func (m *importer) judge(settings []Setting) {
	for _, s := range settings {
		r := m.result(s)
		if last := m.settings[s.Key]; last.Line != s.Line {
			r = Result{Outcome: NoEffect, Note: fmt.Sprintf("line %d sets it again", last.Line)}
		}
		r.Line, r.Key, r.Value = s.Line, s.Key, s.Value
		_, name := m.scope(s.Key)
		if secret(s.Key) || !named(name) || userinfo.MatchString(s.Value) {
			r.Value = hidden
		}
		if remainder(s, name) {
			r.Key = hidden
			r.Note += "; is it the rest of a value, whose line lacks its backslash at the end?"
		}
		m.results = append(m.results, r)
	}
	for _, d := range []struct{ name, value string }{
		{"topics.exclude", DefaultExclude},
		{"replication.factor", "2"},
		{"sync.topic.configs.enabled", "true"},
		{"sync.topic.acls.enabled", "true"},
		{"emit.heartbeats.enabled", "true"},
		{"emit.checkpoints.enabled", "true"},
		{"emit.offset-syncs.enabled", "true"},
	} {
		names := []string{d.name}
		if d.name == "topics.exclude" {
			names = append(names, "topics.blacklist")
		}
		if !m.defaultCounts(names) {
			continue
		}
		r := Result{Key: d.name, Value: d.value, Outcome: TakenOver, To: "links[].exclude"}
		if rule, ok := flowRules[d.name]; ok {
			r = Result{Key: d.name, Value: d.value, Outcome: rule.outcome, Note: rule.note}
		}
		m.results = append(m.results, r)
	}
}

// defaultCounts tells whether the file gives a setting to none or only some of the enabled
// flows; names are its names in different versions.
func (m *importer) defaultCounts(names []string) bool {
	return slices.ContainsFunc(m.flowsOf(), func(f scope) bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			_, given := m.flowSetting(f.from, f.to, name)
			return given
		})
	})
}

// result is what becomes of a setting, without the setting.
func (m *importer) result(s Setting) Result {
	switch scope, name := m.scope(s.Key); {
	case name == "":
		return m.unknown(s.Key, s.Key)
	case scope.from != "":
		return m.flowResult(s, scope, name)
	case scope.cluster != "":
		return m.clusterResult(s, scope.cluster, name)
	case name == "clusters":
		return Result{Outcome: TakenOver, To: "regions", Note: "ids are given in the order of the list; never give the id of one region to another"}
	default:
		return m.commonResult(s, name)
	}
}

type scope struct{ cluster, from, to string }

// scope splits a key where the prefix of a cluster or flow ends. The name is empty if the
// key is about a cluster or flow that the file does not have.
func (m *importer) scope(key string) (scope, string) {
	if from, rest, ok := strings.Cut(key, "->"); ok {
		for _, to := range m.clusters {
			if name, ok := strings.CutPrefix(rest, to+"."); ok && to != from && slices.Contains(m.clusters, from) {
				return scope{from: from, to: to}, name
			}
		}
		return scope{}, ""
	}
	for _, alias := range m.clusters {
		if name, ok := strings.CutPrefix(key, alias+"."); ok {
			return scope{cluster: alias}, name
		}
	}
	return scope{}, key
}

// unknown is the result of a setting that neither MirrorMaker 2 nor Kafka has. name is the part
// of the key that may be misspelt.
func (m *importer) unknown(key, name string) Result {
	r := Result{Outcome: Unknown, Note: "neither MirrorMaker 2 nor Kafka has this setting"}
	if strings.Contains(key, "->") && key == name {
		r.Note = "no two clusters of this file have these aliases (clusters = " + strings.Join(m.clusters, ", ") + ")"
		return r
	}
	if near := strings.TrimSuffix(key, name) + strict.Nearest(name, allNames()); near != strings.TrimSuffix(key, name) && near != key {
		r.Note += "; did you mean " + near + "?"
	}
	return r
}

func (m *importer) flowResult(s Setting, of scope, name string) Result {
	if !m.enabled(of.from, of.to) && name != "enabled" {
		if _, known := ruleOf(name); known || slices.Contains(flowMembers, name) {
			return Result{Outcome: NoEffect, Note: fmt.Sprintf("%s->%s is not enabled", of.from, of.to)}
		}
		return m.unknown(s.Key, name)
	}
	return m.memberResult(s, fmt.Sprintf("links[%s-%s].", of.from, of.to), name)
}

// flowMembers are the settings of flows that a link's configuration holds.
var flowMembers = []string{"enabled", "topics", "topics.exclude", "topics.blacklist", "replication.policy.class", "replication.policy.separator"}

// memberResult is the result of a setting of a flow, or of all: at is the link.
func (m *importer) memberResult(s Setting, at, name string) Result {
	switch name {
	case "enabled":
		switch {
		case strings.EqualFold(s.Value, "true"):
			return Result{Outcome: TakenOver, To: strings.TrimSuffix(at, ".")}
		case strings.EqualFold(s.Value, "false"):
			return Result{Outcome: TakenOver, Note: "no link"}
		}
		return Result{Outcome: Changed, Note: "neither true nor false: MirrorMaker 2 takes it for false, so there is no link"}
	case "topics":
		return Result{Outcome: TakenOver, To: at + "include"}
	case "topics.exclude", "topics.blacklist":
		return Result{Outcome: TakenOver, To: at + "exclude"}
	case "replication.policy.class", "replication.policy.separator":
		return Result{Outcome: TakenOver, Note: "copies are called <alias>.<topic>"}
	}
	return m.ruleResult(s, name)
}

func (m *importer) clusterResult(s Setting, alias, name string) Result {
	if name == "bootstrap.servers" {
		return Result{Outcome: TakenOver, To: "regions." + alias + ".kafka.seeds"}
	}
	if r, ok := m.security[alias][name]; ok {
		return r
	}
	return m.ruleResult(s, name)
}

// commonResult is the result of a setting of the whole file.
func (m *importer) commonResult(s Setting, name string) Result {
	switch {
	case name == "enabled":
		return Result{Outcome: NoEffect, Note: "MirrorMaker 2 reads only <from>-><to>.enabled"}
	case slices.Contains(flowMembers, name):
		if !slices.ContainsFunc(m.flowsOf(), func(f scope) bool { return m.uses(f, s) }) {
			return Result{Outcome: NoEffect, Note: "every enabled flow has a value of its own"}
		}
		return m.memberResult(s, "links[].", name)
	case name == "bootstrap.servers":
		return Result{Outcome: TakenOver, To: "regions.*.kafka.seeds", Note: "of clusters that have none of their own"}
	}
	for _, alias := range m.clusters { // all that do not have it of their own are alike
		if _, own := m.settings[alias+"."+name]; own {
			continue
		}
		if r, ok := m.security[alias][name]; ok {
			r.To = strings.ReplaceAll(r.To, "regions."+alias+".", "regions.*.")
			return r
		}
	}
	return m.ruleResult(s, name)
}

// flowsOf returns the enabled flows.
func (m *importer) flowsOf() (out []scope) {
	for _, from := range m.clusters {
		for _, to := range m.clusters {
			if from != to && m.enabled(from, to) {
				out = append(out, scope{from: from, to: to})
			}
		}
	}
	return out
}

// uses tells whether a flow gets its value from s, a setting of the whole file.
func (m *importer) uses(f scope, s Setting) bool {
	if s.Key == "topics.blacklist" {
		if _, newer := m.flowSetting(f.from, f.to, "topics.exclude"); newer {
			return false
		}
	}
	used, _ := m.flowSetting(f.from, f.to, s.Key)
	return used == s
}

// ruleResult is the result of a setting that needs nothing but its rule.
func (m *importer) ruleResult(s Setting, name string) Result {
	if r, ok := ruleOf(name); ok {
		return Result{Outcome: r.outcome, Note: r.note}
	}
	return m.unknown(s.Key, name)
}
