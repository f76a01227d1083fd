package node

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/loopback"
	"github.com/geogate/geogate/internal/secret"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

// Config is the configuration of one instance of a region. The file form is
// docs/schema/config-v1.json. A Config is used after it went through
// [Config.Complete] and [Config.Validate]; one made in a program starts from
// [Defaults].
type Config struct {
	// Version is the version of the file's form: 1.
	Version int `yaml:"version"`
	// Region is the region that the instance belongs to.
	Region string `yaml:"region"`
	// Instance names the instance within its region. Default: <region>-0.
	Instance string `yaml:"instance"`
	// DataDir holds what the instance keeps on disk: store/ (a cache), and
	// kafka/ where the region's Kafka is embedded.
	DataDir string `yaml:"data_dir"`
	// Regions are all regions of the deployment by name.
	Regions map[string]RegionConfig `yaml:"regions"`
	// Links are the links of the deployment; the instance runs those that begin
	// in its region.
	Links       []LinkConfig      `yaml:"links"`
	NATS        NATSConfig        `yaml:"nats"`
	HTTP        HTTPConfig        `yaml:"http"`
	Management  ManagementConfig  `yaml:"management"`
	Idempotency IdempotencyConfig `yaml:"idempotency"`
	Limits      LimitsConfig      `yaml:"limits"`
	Policies    PoliciesConfig    `yaml:"policies"`
	Log         LogConfig         `yaml:"log"`
	// Drain is how long a stopping instance may take to answer what it has
	// accepted and to finish its transactions.
	Drain time.Duration `yaml:"drain"`
}

// LinkConfig is one direction of replication.
type LinkConfig struct {
	// Name is only for people and is never parsed. Default: <from>-<to>.
	Name string `yaml:"name"`
	// From and To are the names of regions. There is at most one link for each
	// ordered pair.
	From string `yaml:"from"`
	To   string `yaml:"to"`
	// Include and Exclude are topic patterns of [router.NewMatcher]. Include
	// defaults to everything.
	Include []string `yaml:"include"`
	Exclude []string `yaml:"exclude"`
}

// NATSConfig says how the regions agree on ownership. Without embedded and urls
// there is no register: every region owns its units, and none can be fenced.
type NATSConfig struct {
	// Mode is solo, one server, or quorum, a cluster over two regions and a
	// witness.
	Mode string `yaml:"mode"`
	// URLs are the servers of a cluster outside the process.
	URLs []string `yaml:"urls"`
	// Embedded runs a NATS server inside the process.
	Embedded *EmbeddedNATS `yaml:"embedded"`
	// Lease are the times of the ownership protocol, the same in every instance.
	Lease ownership.LeaseConfig `yaml:"lease"`
}

// Register reports whether there is an ownership register.
func (c NATSConfig) Register() bool { return c.Embedded != nil || len(c.URLs) > 0 }

// voters is how many servers hold the register.
func (c NATSConfig) voters() int {
	if c.Mode == modeQuorum {
		return quorumVoters
	}
	return 1
}

// The modes, and how many servers hold the register of a quorum.
const (
	modeSolo     = "solo"
	modeQuorum   = "quorum"
	quorumVoters = 3
)

// EmbeddedNATS is a NATS server inside the process, with its streams under
// nats/ in the data directory.
type EmbeddedNATS struct {
	// Name names the server, unique in its cluster and never given to a server
	// with another directory. Default: the instance's name.
	Name string `yaml:"name"`
	// Cluster is the loopback host:port for the other servers of the cluster.
	Cluster string `yaml:"cluster"`
	// Routes are the other servers, as nats-route://host:port.
	Routes []string `yaml:"routes"`
	// Advertise is the cluster address told to other servers. Default: Cluster.
	Advertise string `yaml:"advertise"`
	// SecretFile holds the secret that the servers of the cluster share.
	SecretFile string `yaml:"secret_file"`
}

// Later says how secrets are given.
func (EmbeddedNATS) Later() map[string]string {
	return map[string]string{"secret": "secrets are given in files only; use secret_file"}
}

// Secret reads the secret of the cluster; it is nil where no file is configured.
func (e EmbeddedNATS) Secret() ([]byte, error) {
	if e.SecretFile == "" {
		return nil, nil
	}
	b, err := secret.Read(e.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("read nats.embedded.secret_file: %w", err)
	}
	return b, nil
}

// HTTPConfig is the listener for producers and consumers.
type HTTPConfig struct {
	// Listen is a loopback host:port, since there is no authentication yet; port
	// 0 takes a free one.
	Listen string `yaml:"listen"`
	// AllowedHosts are the names in the Host header that are answered, beside
	// localhost, loopback addresses and the host of Listen.
	AllowedHosts []string `yaml:"allowed_hosts"`
	// MaxConnections bounds the connections that are open at a time, MaxReaders
	// the pages that are read, and likewise the streams that are followed. One
	// address has at most half of each, so that there is something for others.
	MaxConnections int `yaml:"max_connections"`
	MaxReaders     int `yaml:"max_readers"`
	// MaxBody bounds a request's body, MaxRecord one record in it, MaxInflight
	// what bodies of all requests have in memory, and likewise answers that wait
	// to be taken. One address has at most half of that. It bounds the writes of all
	// partitions that are not settled, too.
	MaxBody     strict.Size `yaml:"max_body"`
	MaxRecord   strict.Size `yaml:"max_record"`
	MaxInflight strict.Size `yaml:"max_inflight"`
}

// ManagementConfig is the listener for operators and probes.
type ManagementConfig struct {
	// Listen is a loopback host:port; port 0 takes a free one.
	Listen string `yaml:"listen"`
	// AllowedHosts and MaxConnections are like those of HTTPConfig.
	AllowedHosts   []string `yaml:"allowed_hosts"`
	MaxConnections int      `yaml:"max_connections"`
	// Pprof serves profiles under /debug/pprof/: what the process does and has in memory.
	Pprof bool `yaml:"pprof"`
}

// Listener gives what the server of the listener needs.
func (c ManagementConfig) Listener() gateway.ListenerConfig {
	return gateway.ListenerConfig{Listen: c.Listen, AllowedHosts: c.AllowedHosts, MaxConnections: c.MaxConnections}
}

// IdempotencyConfig bounds the memory for idempotency keys.
type IdempotencyConfig struct {
	// Window is how long a key is remembered after its first use.
	Window time.Duration `yaml:"window"`
	// SecretFile holds the secret under which keys are hashed before they enter
	// a record, the same in all regions. Empty: a public constant.
	SecretFile string `yaml:"secret_file"`
}

// Later says how secrets are given.
func (IdempotencyConfig) Later() map[string]string {
	return map[string]string{"secret": "secrets are given in files only; use secret_file"}
}

// LimitsConfig bounds what a record, and a batch of records, may be, whoever wrote it:
// the same in every region. What exceeds a limit is in no view of any region.
type LimitsConfig struct {
	// BatchUnfolded bounds the memory that a batch takes: its records decompressed,
	// 256 bytes for each record and 48 for each header.
	BatchUnfolded strict.Size `yaml:"batch_unfolded"`
	// RecordHeaders is how many headers a record may have, HeaderBytes how long their
	// names and values may be together.
	RecordHeaders int         `yaml:"record_headers"`
	HeaderBytes   strict.Size `yaml:"header_bytes"`
	// Key is how long a record's key may be, at most 32 KiB.
	Key strict.Size `yaml:"key"`
}

// Batches gives the limits as the reader of batches takes them.
func (c LimitsConfig) Batches() txn.Limits {
	return txn.Limits{
		BatchUnfolded: int(c.BatchUnfolded), RecordHeaders: c.RecordHeaders, HeaderBytes: int(c.HeaderBytes), Key: int(c.Key),
	}
}

// maxKey is the longest key that every part can hold: the store's own limit is 65,000
// bytes, with what is put before a key.
const maxKey = 32 * strict.KiB

// validate finds what is wrong with the limits, given the largest record that the edge
// lets in.
func (c LimitsConfig) validate(bad *strict.Problems, maxRecord strict.Size) {
	at := strict.At("limits")
	if c.BatchUnfolded < strict.MiB || c.BatchUnfolded > strict.GiB {
		bad.Add(at.And("batch_unfolded"), "must be within 1MiB and 1GiB")
	} else if least := unfoldedRecords * maxRecord; c.BatchUnfolded < least {
		bad.Add(at.And("batch_unfolded"), "must be at least %d times http.max_record, %s", unfoldedRecords, least)
	}
	if c.RecordHeaders < minHeaders || c.RecordHeaders > maxHeaders {
		bad.Add(at.And("record_headers"), "must be within %d and %d", minHeaders, maxHeaders)
	}
	if c.HeaderBytes < 16*strict.KiB || c.HeaderBytes > 64*strict.MiB {
		bad.Add(at.And("header_bytes"), "must be within 16KiB and 64MiB")
	}
	if c.Key < strict.KiB || c.Key > maxKey {
		bad.Add(at.And("key"), "must be within 1KiB and %s, the longest key that can be stored", maxKey)
	}
}

// unfoldedRecords is how many times http.max_record a batch must be allowed to unfold to,
// so that no batch of a gateway's own exceeds the limit: one of about that many bytes may
// hold nothing but headers, which take two bytes each.
const unfoldedRecords = 32

// The bounds of limits.record_headers: a gateway writes some itself.
const (
	minHeaders = 100
	maxHeaders = 1_000_000
)

// PoliciesConfig names the policy files; an empty name means none.
type PoliciesConfig struct {
	// Residency is a residency policy, docs/schema/residency-v1.json. With one,
	// nothing leaves the region that no rule of it allows.
	Residency string `yaml:"residency"`
	// Ownership is an ownership policy, docs/schema/ownership-v1.json.
	Ownership string `yaml:"ownership"`
}

// LogConfig is about the log on standard error.
type LogConfig struct {
	// Level is debug, info, warn or error.
	Level string `yaml:"level"`
}

// Defaults gives the configuration that keys left out of a file have. What
// depends on other keys is filled in by [Config.Complete].
func Defaults() Config {
	return Config{
		NATS: NATSConfig{Mode: modeSolo, Lease: ownership.DefaultLease()},
		HTTP: HTTPConfig{
			Listen: "127.0.0.1:18081", AllowedHosts: []string{}, MaxConnections: 2048, MaxReaders: 64,
			MaxBody: 32 * strict.MiB, MaxRecord: strict.MiB, MaxInflight: 256 * strict.MiB,
		},
		Management:  ManagementConfig{Listen: "127.0.0.1:18091", AllowedHosts: []string{}, MaxConnections: 64},
		Idempotency: IdempotencyConfig{Window: 24 * time.Hour},
		Limits: LimitsConfig{
			BatchUnfolded: txn.DefaultBatchUnfolded, RecordHeaders: txn.DefaultRecordHeaders, HeaderBytes: txn.DefaultHeaderBytes, Key: txn.DefaultKey,
		},
		Log:   LogConfig{Level: "info"},
		Drain: 30 * time.Second,
	}
}

// Complete gives the configuration with the defaults that depend on other keys:
// the instance's and the links' names, and links that include everything.
func (c Config) Complete() Config {
	if c.Instance == "" && c.Region != "" {
		c.Instance = c.Region + "-0"
	}
	if e := c.NATS.Embedded; e != nil && e.Name == "" {
		named := *e
		named.Name = c.Instance
		c.NATS.Embedded = &named
	}
	c.Links = slices.Clone(c.Links)
	for i := range c.Links {
		l := &c.Links[i]
		l.Name = cmp.Or(l.Name, l.From+"-"+l.To)
		if l.Include == nil {
			l.Include = []string{"*"}
		}
	}
	return c
}

// Topology gives the regions of the deployment.
func (c Config) Topology() (*router.Topology, error) {
	var regions []router.Region
	for name, r := range c.Regions {
		regions = append(regions, router.Region{Name: name, ID: r.ID})
	}
	return router.NewTopology(regions...)
}

// Outgoing gives the links that begin in the own region, in the order of the
// file: those that the instance runs.
func (c Config) Outgoing() []LinkConfig {
	return slices.DeleteFunc(slices.Clone(c.Links), func(l LinkConfig) bool { return l.From != c.Region })
}

// Secret reads the idempotency secret; it is nil when no file is configured.
func (c Config) Secret() ([]byte, error) {
	if c.Idempotency.SecretFile == "" {
		return nil, nil
	}
	b, err := secret.Read(c.Idempotency.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("read idempotency secret: %w", err)
	}
	return b, nil
}

// Ownership reads the ownership policy; without one every topic is in the
// default domain.
func (c Config) Ownership() (*ownership.Policy, error) {
	if c.Policies.Ownership == "" {
		return &ownership.Policy{}, nil
	}
	p, err := ownership.LoadPolicy(c.Policies.Ownership)
	if err != nil {
		return nil, err
	}
	t, err := c.Topology()
	if err != nil {
		return nil, err
	}
	return p, p.Check(t)
}

// Residency reads the residency policy; nil without one.
func (c Config) Residency() (*residency.Policy, error) {
	if c.Policies.Residency == "" {
		return nil, nil
	}
	p, err := residency.Load(c.Policies.Residency, slices.Sorted(maps.Keys(c.Regions)))
	if err != nil {
		return nil, fmt.Errorf("policies.residency: %w", err)
	}
	return p, nil
}

// Validate finds everything that is wrong with a complete configuration as far
// as it can be seen without files and network. The error is a
// [*strict.Problems].
func (c Config) Validate() error {
	var bad strict.Problems
	if c.Version != 1 {
		bad.Add(strict.At("version"), "must be 1, the version of this file's form")
	}
	c.validateSelf(&bad)
	c.validateRegions(&bad)
	c.validateLinks(&bad)
	c.validateListeners(&bad)
	c.validateRest(&bad)
	return bad.Err()
}

var instanceForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

func (c Config) validateSelf(bad *strict.Problems) {
	names := slices.Sorted(maps.Keys(c.Regions))
	if c.Region == "" {
		bad.Add(strict.At("region"), "must name the region that this instance belongs to")
	} else if _, ok := c.Regions[c.Region]; !ok {
		bad.Unknown(strict.At("region"), "region", c.Region, names...)
	}
	if c.Region != "" && !instanceForm.MatchString(c.Instance) {
		bad.Add(strict.At("instance"), "%q is not an instance name, want 1 to 100 letters, digits, dots, hyphens and underscores", c.Instance)
	}
	if c.DataDir == "" {
		bad.Add(strict.At("data_dir"), "must name a directory")
	}
}

func (c Config) validateLinks(bad *strict.Problems) {
	pairs, named := make(map[[2]string]bool), make(map[string]bool)
	regions := slices.Sorted(maps.Keys(c.Regions))
	for i, l := range c.Links {
		at := strict.At("links", i)
		for _, end := range []struct{ key, name string }{{"from", l.From}, {"to", l.To}} {
			if end.name == "" {
				bad.Add(at.And(end.key), "must name a region")
			} else if _, ok := c.Regions[end.name]; !ok {
				bad.Unknown(at.And(end.key), "region", end.name, regions...)
			}
		}
		pair := [2]string{l.From, l.To}
		switch {
		case l.From == "" || l.To == "":
		case l.From == l.To:
			bad.Add(at.And("to"), "a link leads to another region")
		case pairs[pair]:
			bad.Add(at, "a link from %s to %s exists already", l.From, l.To)
		}
		if named[l.Name] && !pairs[pair] {
			bad.Add(at.And("name"), "a link %s exists already", l.Name)
		}
		pairs[pair], named[l.Name] = true, true
		if !instanceForm.MatchString(l.Name) {
			bad.Add(at.And("name"), "%q is not a link name, want 1 to 100 letters, digits, dots, hyphens and underscores", l.Name)
		}
		if to, ok := c.Regions[l.To]; ok && l.From == c.Region && l.To != c.Region && len(to.Kafka.Seeds) == 0 {
			bad.Add(strict.At("regions", l.To, "kafka"), "needs seeds: link %s writes there", l.Name)
		}
		checkPatterns(bad, at.And("include"), l.Include)
		checkPatterns(bad, at.And("exclude"), l.Exclude)
	}
}

func checkPatterns(bad *strict.Problems, at strict.Path, patterns []string) {
	for i, p := range patterns {
		if _, err := router.ParsePattern(p); err != nil {
			bad.Add(at.And(i), "%v", err)
		}
	}
}

func (c Config) validateListeners(bad *strict.Problems) {
	checkLoopback(bad, strict.At("http", "listen"), c.HTTP.Listen, "there is no authentication yet")
	checkLoopback(bad, strict.At("management", "listen"), c.Management.Listen, "there is no authentication yet")
	listeners := []struct {
		at     strict.Path
		listen string
	}{{strict.At("http", "listen"), c.HTTP.Listen}, {strict.At("management", "listen"), c.Management.Listen}}
	if k := c.Own().Kafka.Embedded; k != nil {
		listeners = append(listeners, struct {
			at     strict.Path
			listen string
		}{strict.At("regions", c.Region, "kafka", "embedded", "listen"), k.Listen})
	}
	for i, a := range listeners {
		for _, b := range listeners[:i] {
			if _, port, err := splitAddress(a.listen); err == nil && port != 0 && a.listen == b.listen {
				bad.Add(a.at, "%s is taken by %s", a.listen, b.at)
			}
		}
	}
	h := c.HTTP
	checkHosts(bad, strict.At("http", "allowed_hosts"), h.AllowedHosts)
	checkHosts(bad, strict.At("management", "allowed_hosts"), c.Management.AllowedHosts)
	for _, limit := range []struct {
		key  string
		size strict.Size
	}{{"max_body", h.MaxBody}, {"max_record", h.MaxRecord}, {"max_inflight", h.MaxInflight}} {
		if limit.size < strict.KiB {
			bad.Add(strict.At("http", limit.key), "must be at least 1KiB")
		}
	}
	if h.MaxRecord > h.MaxBody {
		bad.Add(strict.At("http", "max_record"), "%s is more than max_body, %s, lets in", h.MaxRecord, h.MaxBody)
	}
	if most := strict.Size(gateway.MaxShare(int64(h.MaxInflight))); h.MaxBody > most {
		bad.Add(strict.At("http", "max_body"), "%s is more than one address may have in memory, half of max_inflight, %s", h.MaxBody, h.MaxInflight)
	}
	for _, limit := range []struct {
		at strict.Path
		n  int
	}{
		{strict.At("http", "max_connections"), h.MaxConnections},
		{strict.At("http", "max_readers"), h.MaxReaders},
		{strict.At("management", "max_connections"), c.Management.MaxConnections},
	} {
		if limit.n < 1 {
			bad.Add(limit.at, "must be at least 1")
		}
	}
}

// Bounds of the two durations. A window of years would grow the index without
// end; a drain of hours is a process that hangs.
const (
	maxWindow = 90 * 24 * time.Hour
	maxDrain  = time.Hour
)

func (c Config) validateRest(bad *strict.Problems) {
	c.NATS.validate(bad, strict.At("nats"))
	c.Limits.validate(bad, c.HTTP.MaxRecord)
	if w := c.Idempotency.Window; w < time.Second || w > maxWindow {
		bad.Add(strict.At("idempotency", "window"), "must be within 1s and %s", strict.FormatDuration(maxWindow))
	}
	if c.Policies.Residency != "" && c.Idempotency.SecretFile == "" {
		// Hashes of keys cross in records and can be guessed without a secret.
		bad.Add(strict.At("policies", "residency"), "a residency policy needs idempotency.secret_file, the same in all regions")
	}
	levels := []string{"debug", "info", "warn", "error"}
	if !slices.Contains(levels, c.Log.Level) {
		bad.Unknown(strict.At("log", "level"), "level", c.Log.Level, levels...)
	}
	if c.Drain <= 0 || c.Drain > maxDrain {
		bad.Add(strict.At("drain"), "must be more than 0s and at most %s", strict.FormatDuration(maxDrain))
	}
}

// validate finds what is wrong with the register's configuration.
func (c NATSConfig) validate(bad *strict.Problems, at strict.Path) {
	switch c.Mode {
	case modeSolo, modeQuorum:
	case "paired":
		bad.Add(at.And("mode"), "mode paired, two sites without a witness, comes with the failover commands, since an operator has to attest every take-over; until then use quorum with a witness, or solo")
	default:
		bad.Unknown(at.And("mode"), "mode", c.Mode, modeSolo, modeQuorum)
	}
	switch {
	case c.Embedded != nil && len(c.URLs) > 0:
		bad.Add(at, "give either embedded or urls, not both")
	case c.Mode == modeQuorum && !c.Register():
		bad.Add(at, "mode quorum needs embedded, one of three servers, or the urls of a cluster")
	}
	for i, u := range c.URLs {
		checkServer(bad, at.And("urls", i), u, "nats://host:4222", "")
	}
	if err := c.Lease.Validate(); err != nil {
		bad.Add(at.And("lease"), "%v", err)
	}
	if c.Embedded != nil && (c.Mode == modeSolo || c.Mode == modeQuorum) {
		c.Embedded.validate(bad, at.And("embedded"), c.Mode)
	}
}

func (e EmbeddedNATS) validate(bad *strict.Problems, at strict.Path, mode string) {
	if e.Name != "" && !instanceForm.MatchString(e.Name) {
		bad.Add(at.And("name"), "%q is not a server name, want 1 to 100 letters, digits, dots, hyphens and underscores", e.Name)
	}
	if mode == modeSolo {
		if e.Cluster != "" || len(e.Routes) > 0 || e.Advertise != "" || e.SecretFile != "" {
			bad.Add(at, "cluster, routes, advertise and secret_file are for mode quorum; in mode solo there is one server, which only this process reaches")
		}
		return
	}
	if e.Cluster == "" {
		bad.Add(at.And("cluster"), "needs an address for the other servers of the cluster")
	} else {
		checkLoopback(bad, at.And("cluster"), e.Cluster, "an embedded cluster is for one host; use urls for a cluster over several machines")
	}
	if e.SecretFile == "" {
		bad.Add(at.And("secret_file"), "needs a secret that all three servers share, or any process on this machine could join them: make one with (umask 077; openssl rand -hex 32 > nats.secret)")
	}
	if len(e.Routes) != quorumVoters-1 {
		bad.Add(at.And("routes"), "needs the other %d servers of the cluster, two regions and a witness are %d", quorumVoters-1, quorumVoters)
	}
	for i, r := range e.Routes {
		checkServer(bad, at.And("routes", i), r, "nats-route://host:6222", "nats-route")
	}
	if _, _, err := splitAddress(e.Advertise); e.Advertise != "" && err != nil {
		bad.Add(at.And("advertise"), "%q is not host:port", e.Advertise)
	}
}

// checkServer refuses what is no URL of a NATS server, of a scheme if that is given, and
// one with a name or password in it: a configuration is shown.
func checkServer(bad *strict.Problems, at strict.Path, server, like, scheme string) {
	u, err := url.Parse(server)
	switch {
	case strings.Contains(server, "@"):
		bad.Add(at, "a URL must not have a name or password in it, since the configuration is shown; give host and port alone")
	case err != nil || u.Host == "" || scheme != "" && u.Scheme != scheme:
		bad.Add(at, "%q is not a URL like %s", server, like)
	}
}

// checkHosts refuses what no Host header has once its port is taken off.
func checkHosts(bad *strict.Problems, at strict.Path, names []string) {
	for i, name := range names {
		if !gateway.IsHost(name) {
			bad.Add(at.And(i), "%q is not a host name or address, without scheme and port", name)
		}
	}
}

// checkLoopback refuses an address that other machines reach.
func checkLoopback(bad *strict.Problems, at strict.Path, address, because string) {
	if err := loopback.Check(address, because); err != nil {
		bad.Add(at, "%v", err)
	}
}

func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || strings.ContainsAny(host, "/@ ") {
		return "", 0, fmt.Errorf("split address %q", address)
	}
	return host, int(n), nil
}
