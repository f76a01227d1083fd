package node

import (
	"slices"
	"time"

	"github.com/geogate/geogate/internal/strict"
)

// WitnessConfig is the configuration of a witness: one server of the ownership
// register in a third place, which votes and holds no data of any region. The file
// form is docs/schema/witness-v1.json.
type WitnessConfig struct {
	// Version is the version of the file's form: 1.
	Version int `yaml:"version"`
	// DataDir holds the server's streams under nats/.
	DataDir    string           `yaml:"data_dir"`
	NATS       WitnessNATS      `yaml:"nats"`
	Management ManagementConfig `yaml:"management"`
	Log        LogConfig        `yaml:"log"`
}

// WitnessNATS is the server of a witness.
type WitnessNATS struct {
	// Mode is quorum: nothing else has a witness.
	Mode     string        `yaml:"mode"`
	Embedded *EmbeddedNATS `yaml:"embedded"`
}

// WitnessDefaults gives the configuration that keys left out of a file have.
func WitnessDefaults() WitnessConfig {
	return WitnessConfig{
		NATS:       WitnessNATS{Mode: modeQuorum},
		Management: ManagementConfig{Listen: "127.0.0.1:18093", AllowedHosts: []string{}, MaxConnections: 64},
		Log:        LogConfig{Level: "info"},
	}
}

// WitnessDrain is how long a stopping witness may take.
const WitnessDrain = 10 * time.Second

// Complete gives the configuration with the defaults that depend on other keys.
func (c WitnessConfig) Complete() WitnessConfig {
	if e := c.NATS.Embedded; e != nil && e.Name == "" {
		named := *e
		named.Name = "witness"
		c.NATS.Embedded = &named
	}
	return c
}

// Validate finds everything that is wrong with a complete configuration. The
// error is a [*strict.Problems].
func (c WitnessConfig) Validate() error {
	var bad strict.Problems
	if c.Version != 1 {
		bad.Add(strict.At("version"), "must be 1, the version of this file's form")
	}
	if c.DataDir == "" {
		bad.Add(strict.At("data_dir"), "must name a directory")
	}
	if c.NATS.Mode != modeQuorum {
		bad.Add(strict.At("nats", "mode"), "must be quorum: no other mode has a witness")
	}
	if c.NATS.Embedded == nil {
		bad.Add(strict.At("nats", "embedded"), "a witness is one of three servers: needs cluster and routes")
	} else {
		c.NATS.Embedded.validate(&bad, strict.At("nats", "embedded"), modeQuorum)
	}
	checkLoopback(&bad, strict.At("management", "listen"), c.Management.Listen, "there is no authentication yet")
	if c.Management.MaxConnections < 1 {
		bad.Add(strict.At("management", "max_connections"), "must be at least 1")
	}
	checkHosts(&bad, strict.At("management", "allowed_hosts"), c.Management.AllowedHosts)
	levels := []string{"debug", "info", "warn", "error"}
	if !slices.Contains(levels, c.Log.Level) {
		bad.Unknown(strict.At("log", "level"), "level", c.Log.Level, levels...)
	}
	return bad.Err()
}
