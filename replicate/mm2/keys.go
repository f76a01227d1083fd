package mm2

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Outcome is what becomes of a setting.
type Outcome string

// The outcomes, from the best to the worst.
const (
	// TakenOver means that geogate does what the setting says.
	TakenOver Outcome = "taken_over"
	// Changed means that geogate does it by a rule of its own, which the note names.
	Changed Outcome = "changed"
	// NoEffect means that the setting is about Kafka Connect or Java's clients and that
	// nothing is lost without it.
	NoEffect Outcome = "no_effect"
	// NoEquivalent means that geogate does not do what the setting asks for.
	NoEquivalent Outcome = "no_equivalent"
	// Unknown means that neither MirrorMaker 2 nor Kafka has such a setting: MirrorMaker 2
	// ignores it, and it is probably misspelt.
	Unknown Outcome = "unknown"
)

// rule is what becomes of a setting whatever its value is.
type rule struct {
	outcome Outcome
	note    string
}

const (
	noteConnect  = "a setting of Kafka Connect, which geogate does not use"
	noteClient   = "a setting of Java's Kafka clients, which geogate does not use"
	noteSecurity = "all clients connect to a cluster in the same way, by its own settings or those of the whole file"
	noteACL      = "links do not copy ACLs: set them at the target"
	noteGroups   = "links do not copy consumer groups' offsets"
	noteEmit     = "links do not write this topic of MirrorMaker 2"
	noteConfigs  = "a copy gets the source's max.message.bytes and retention when it is created; later changes are not copied, and compaction has rules of its own"
	noteFactor   = "topics get the default replication factor of the cluster's brokers"
)

// flowRules are settings of flows, by their name without a prefix. Those that Flow holds
// are not here.
var flowRules = map[string]rule{
	"tasks.max": {NoEffect, "a link runs as many producers as it needs"},
	"replication.policy.internal.topic.separator.enabled": {NoEquivalent, noteEmit},
	"replication.factor":                    {Changed, noteFactor},
	"heartbeats.topic.replication.factor":   {Changed, noteFactor},
	"checkpoints.topic.replication.factor":  {Changed, noteFactor},
	"offset-syncs.topic.replication.factor": {Changed, noteFactor},
	"offset-syncs.topic.location":           {NoEquivalent, noteEmit},
	"refresh.topics.enabled":                {Changed, "new topics are always found"},
	"refresh.topics.interval.seconds":       {Changed, "new topics are found within 5 s"},
	"refresh.groups.enabled":                {NoEquivalent, noteGroups},
	"refresh.groups.interval.seconds":       {NoEquivalent, noteGroups},
	"sync.topic.configs.enabled":            {Changed, noteConfigs},
	"sync.topic.configs.interval.seconds":   {Changed, noteConfigs},
	"config.properties.exclude":             {Changed, noteConfigs},
	"config.properties.blacklist":           {Changed, noteConfigs},
	"use.defaults.from":                     {Changed, noteConfigs},
	"use.incremental.alter.configs":         {NoEffect, "geogate always changes settings one by one"},
	"config.property.filter.class":          {NoEquivalent, "geogate does not run Java classes"},
	"topic.filter.class":                    {NoEquivalent, "geogate does not run Java classes"},
	"group.filter.class":                    {NoEquivalent, "geogate does not run Java classes"},
	"forwarding.admin.class":                {NoEquivalent, "geogate does not run Java classes"},
	"sync.topic.acls.enabled":               {NoEquivalent, noteACL},
	"sync.topic.acls.interval.seconds":      {NoEquivalent, noteACL},
	"groups":                                {NoEquivalent, noteGroups},
	"groups.exclude":                        {NoEquivalent, noteGroups},
	"groups.blacklist":                      {NoEquivalent, noteGroups},
	"sync.group.offsets.enabled":            {NoEquivalent, noteGroups},
	"sync.group.offsets.interval.seconds":   {NoEquivalent, noteGroups},
	"emit.heartbeats.enabled":               {NoEquivalent, noteEmit},
	"emit.heartbeats.interval.seconds":      {NoEquivalent, noteEmit},
	"heartbeats.replication.enabled":        {NoEquivalent, noteEmit},
	"emit.checkpoints.enabled":              {NoEquivalent, noteEmit},
	"emit.checkpoints.interval.seconds":     {NoEquivalent, noteEmit},
	"emit.offset-syncs.enabled":             {NoEquivalent, noteEmit},
	"offset.lag.max":                        {NoEffect, "a link knows the offset of every record that it copied"},
	"admin.timeout.ms":                      {NoEffect, noteClient},
	"consumer.poll.timeout.ms":              {NoEffect, noteClient},
	"add.source.alias.to.metrics":           {NoEffect, "geogate's metrics name both regions"},
	"transforms":                            {NoEquivalent, "links do not change records; a residency policy can keep records back"},
	"predicates":                            {NoEquivalent, "links do not change records; a residency policy can keep records back"},
	"name":                                  {NoEffect, noteConnect},
	"connector.class":                       {NoEffect, noteConnect},
	"source.cluster.alias":                  {NoEffect, "the flow names its clusters"},
	"target.cluster.alias":                  {NoEffect, "the flow names its clusters"},
	"exactly.once.support":                  {NoEffect, "links always copy exactly once"},
	"exactly.once.source.support":           {NoEffect, "links always copy exactly once"},
	"transaction.boundary":                  {NoEffect, noteConnect},
	"transaction.boundary.interval.ms":      {NoEffect, noteConnect},
	"dedicated.mode.enable.internal.rest":   {NoEffect, noteConnect},
}

// flowPrefixes are the beginnings of further settings of flows.
var flowPrefixes = []struct {
	prefix string
	rule   rule
}{
	{"transforms.", rule{NoEquivalent, "links do not change records; a residency policy can keep records back"}},
	{"predicates.", rule{NoEquivalent, "links do not change records; a residency policy can keep records back"}},
	{"topic.creation.", rule{Changed, noteFactor}},
	{"errors.", rule{NoEffect, noteConnect}},
}

// connectNames and connectPrefixes are settings of Kafka Connect's workers.
var (
	connectNames = strings.Fields(`
config.action.reload config.providers connect.protocol connector.client.config.override.policy group.id header.converter
key.converter value.converter listeners admin.listeners access.control.allow.origin access.control.allow.methods
offset.flush.interval.ms offset.flush.timeout.ms offsets.storage.topic plugin.discovery plugin.path
response.http.headers.config rest.advertised.host.name rest.advertised.listener rest.advertised.port
rest.extension.classes rest.host.name rest.port scheduled.rebalance.max.delay.ms task.shutdown.graceful.timeout.ms tasks.max.enforce
topic.creation.enable topic.tracking.allow.reset topic.tracking.enable worker.sync.timeout.ms
worker.unsync.backoff.ms inter.worker.key.generation.algorithm inter.worker.key.size inter.worker.key.ttl.ms
inter.worker.signature.algorithm inter.worker.verification.algorithms`)
	connectPrefixes = []string{
		"config.providers.", "config.storage.", "offset.storage.", "status.storage.", "header.converter.", "key.converter.",
		"value.converter.", "admin.listeners.https.", "listeners.https.",
	}
)

// clientNames are settings of Java's clients, ConsumerConfig, ProducerConfig and
// AdminClientConfig, except those of a connection's security.
var clientNames = strings.Fields(`
acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset batch.size bootstrap.controllers
buffer.memory check.crcs client.dns.lookup client.id client.rack compression.gzip.level compression.lz4.level
compression.type compression.zstd.level connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms
enable.auto.commit enable.idempotence enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms
fetch.min.bytes group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms interceptor.classes
isolation.level key.deserializer key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
max.partition.fetch.bytes max.poll.interval.ms max.poll.records max.request.size metadata.max.age.ms
metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys
rebalance.timeout.ms receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
retry.backoff.max.ms retry.backoff.ms send.buffer.bytes session.timeout.ms socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms transaction.timeout.ms transactional.id value.deserializer value.serializer`)

// securityNames are the settings of a connection's security, except security.protocol.
var securityNames = strings.Fields(`
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.scope sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret security.providers ssl.cipher.suites ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type
ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type`)

// secretSuffixes end the names of settings whose values are secrets. The value of a
// setting that is unknown is not shown either: its name may be a misspelt one of these, and
// those of plug-ins (transforms, converters) have names of their own.
var secretSuffixes = []string{"password", "sasl.jaas.config", "ssl.keystore.key", "client.secret"}

// secret tells whether the value of a setting is not to be shown.
func secret(key string) bool {
	return strings.Contains(key, "config.providers.") ||
		slices.ContainsFunc(secretSuffixes, func(s string) bool { return strings.HasSuffix(key, s) })
}

// hidden stands for what is not shown.
const hidden = "***"

// userinfo is a URL with a name or password in it.
var userinfo = regexp.MustCompile(`://[^/?#,\s]*@`)

// named tells whether a name without the prefix of a cluster or flow is one of those that
// MirrorMaker 2 and Kafka define, so that it is known what its values are.
func named(name string) bool {
	if name == "" {
		return false
	}
	if hasPrefix(name, []string{"topic.creation.", "errors."}) {
		return true
	}
	for {
		if _, ok := slices.BinarySearch(allNames(), name); ok {
			return true
		}
		rest, ok := cutClient(name)
		if !ok {
			return false
		}
		name = rest
	}
}

// settingName is how names look, with the arrow of flows.
var settingName = regexp.MustCompile(`^[A-Za-z0-9._>-]+$`)

// remainder tells whether a setting looks like the rest of a value whose line lacks its
// backslash, such as a password in quotes on a line of its own: then its key is a value.
func remainder(s Setting, name string) bool {
	if _, known := ruleOf(name); known || named(name) {
		return false
	}
	return !settingName.MatchString(s.Key) || s.Value == ""
}

// ruleOf finds the rule of a setting by its name without the prefix of a cluster or flow.
func ruleOf(name string) (rule, bool) {
	if r, ok := flowRules[name]; ok {
		return r, true
	}
	for _, p := range flowPrefixes {
		if strings.HasPrefix(name, p.prefix) {
			return p.rule, true
		}
	}
	if slices.Contains(connectNames, name) || hasPrefix(name, connectPrefixes) {
		return rule{NoEffect, noteConnect}, true
	}
	prefixed := false
	for { // producer., consumer.override., source.admin. and the like may stand before a client's
		rest, ok := cutClient(name)
		if !ok {
			break
		}
		name, prefixed = rest, true
	}
	switch {
	case !prefixed && (slices.Contains(securityNames, name) || name == "security.protocol"):
		return rule{NoEffect, noteClient}, true // connection did not take it over
	case slices.Contains(securityNames, name) || name == "security.protocol":
		return rule{NoEquivalent, noteSecurity}, true
	case name == "bootstrap.servers":
		return rule{NoEquivalent, "a cluster has one list of brokers for all of its clients"}, true
	case slices.Contains(clientNames, name) || strings.HasPrefix(name, "metrics.context."):
		return rule{NoEffect, noteClient}, true
	}
	return rule{}, false
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// clientPrefixes stand before settings of the clients that a connector uses.
var clientPrefixes = []string{
	"producer.override.", "consumer.override.", "admin.override.", "producer.", "consumer.", "admin.",
	"source.cluster.", "target.cluster.", "source.", "target.",
	"offset-syncs-source-producer.", "offset-syncs-target-producer.", "offset-syncs-source-consumer.",
	"offset-syncs-target-consumer.", "offset-syncs-source-admin.", "offset-syncs-target-admin.",
	"checkpoints-target-consumer.", "replication-consumer.",
}

func cutClient(name string) (string, bool) {
	for _, p := range clientPrefixes {
		if rest, ok := strings.CutPrefix(name, p); ok {
			return rest, true
		}
	}
	return name, false
}

// allNames are knownNames, made once.
var allNames = sync.OnceValue(knownNames)

// knownNames are all names that a misspelt one may be meant for.
func knownNames() []string {
	out := []string{
		"clusters", "bootstrap.servers", "enabled", "topics", "topics.exclude", "topics.blacklist", "replication.policy.class",
		"replication.policy.separator", "security.protocol",
	}
	for name := range flowRules {
		out = append(out, name)
	}
	out = slices.Concat(out, connectNames, clientNames, securityNames)
	slices.Sort(out)
	return out
}
