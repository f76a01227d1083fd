package node

import (
	"errors"
	"maps"
	"slices"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/router"
)

// RegionConfig is one region of the deployment.
type RegionConfig struct {
	// ID is the region's id, 1 to 15, never reused.
	ID event.RegionID `yaml:"id"`
	// Kafka is the region's cluster.
	Kafka KafkaConfig `yaml:"kafka"`
}

// KafkaConfig says where a region's Kafka cluster is. The own region has either
// member, the target of a link has seeds, any other region may have none.
type KafkaConfig struct {
	// Seeds are host:port addresses of brokers.
	Seeds []string `yaml:"seeds"`
	// Embedded runs the cluster inside the process.
	Embedded *EmbeddedKafka `yaml:"embedded"`
	// TLS encrypts connections and checks the brokers' certificates, SASL authenticates this
	// process. Without TLS connections are not encrypted.
	TLS  *connect.TLS  `yaml:"tls"`
	SASL *connect.SASL `yaml:"sasl"`
	// AddressMap gives other host:port addresses for those that brokers advertise, where they
	// are behind a tunnel or address translation.
	AddressMap map[string]string `yaml:"address_map"`
}

// Later says what to write instead of members that people try here.
func (KafkaConfig) Later() map[string]string {
	return map[string]string{
		"security_protocol": "give the member tls for SSL, and the member sasl for SASL",
		"rack":              "reads from replicas of the own rack come with a later version",
	}
}

// Connection returns how the cluster is reached. It shares TLS, SASL and AddressMap with k.
func (k KafkaConfig) Connection() connect.Config {
	return connect.Config{Seeds: k.Seeds, TLS: k.TLS, SASL: k.SASL, AddressMap: k.AddressMap}
}

// EmbeddedKafka is a single-node Kafka inside the process.
type EmbeddedKafka struct {
	// Listen is a loopback host:port; port 0 takes a free one.
	Listen string `yaml:"listen"`
}

// Own gives the own region's entry.
func (c Config) Own() RegionConfig { return c.Regions[c.Region] }

func (c Config) validateRegions(bad *strict.Problems) {
	if len(c.Regions) == 0 {
		bad.Add(strict.At("regions"), "needs at least the own region")
	}
	taken := make(map[event.RegionID]string)
	for _, name := range slices.Sorted(maps.Keys(c.Regions)) {
		r, at := c.Regions[name], strict.At("regions", name)
		if router.CheckAlias(name) != nil {
			bad.Add(at, "%q is not a region name, want 1 to 31 of a-z, 0-9 and -, first a letter", name)
		}
		switch other := taken[r.ID]; {
		case !r.ID.Valid():
			bad.Add(at.And("id"), "must be within 1 and %d", event.MaxRegion)
		case other != "":
			bad.Add(at.And("id"), "%d is already the id of %s", r.ID, other)
		default:
			taken[r.ID] = name
		}
		c.validateKafka(bad, at.And("kafka"), name, r.Kafka)
	}
}

func (c Config) validateKafka(bad *strict.Problems, at strict.Path, name string, k KafkaConfig) {
	own := name == c.Region
	_, known := c.Regions[c.Region] // else one message about that is enough
	switch {
	case own && k.Embedded == nil && len(k.Seeds) == 0:
		bad.Add(at, "the own region needs seeds or embedded")
	case k.Embedded != nil && len(k.Seeds) > 0:
		bad.Add(at, "give either seeds or embedded, not both")
	case !own && known && k.Embedded != nil:
		bad.Add(at.And("embedded"), "only the own region's Kafka can be embedded; give seeds for another region's")
	}
	if k.Embedded != nil {
		checkLoopback(bad, at.And("embedded", "listen"), k.Embedded.Listen, "the embedded Kafka has no authentication")
	}
	for _, m := range []struct {
		name  string
		given bool
	}{{"tls", k.TLS != nil}, {"sasl", k.SASL != nil}, {"address_map", len(k.AddressMap) > 0}} {
		if m.given && len(k.Seeds) == 0 {
			bad.Add(at.And(m.name), "needs seeds: it is for brokers outside of this process")
		}
	}
	connection := k.Connection()
	connection.Validate(bad, at)
}

// connections are the regions whose Kafka this instance connects to, the own one and the
// targets of its links.
func (c Config) connections() []string {
	out := []string{c.Region}
	for _, l := range c.Outgoing() {
		out = append(out, l.To)
	}
	return out
}

// CheckConnections reads the files that the connections to Kafka need. The error is a
// [*strict.Problems].
func (c Config) CheckConnections() error {
	var bad strict.Problems
	for _, region := range c.connections() {
		var more *strict.Problems
		if errors.As(connect.Check(c.Regions[region].Kafka.Connection(), kafkaAt(region)), &more) {
			bad.All = append(bad.All, more.All...)
		}
	}
	return bad.Err()
}

// kafkaAt is the path of a region's cluster.
func kafkaAt(region string) strict.Path { return strict.At("regions", region, "kafka") }
