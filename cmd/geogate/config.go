package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/strict"
)

// configFlags are the flags of every command that reads a configuration.
type configFlags struct {
	file                        string
	set                         []string
	instance, dataDir, logLevel string
}

func (f *configFlags) bind(cmd *cobra.Command, env environment) {
	flags := cmd.Flags()
	flags.StringVar(&f.file, "config", env["CONFIG"], "configuration `file` ($GEOGATE_CONFIG)")
	flags.StringArrayVar(&f.set, "set", nil, "set one configuration `key=value`, like http.max_body=8MiB; repeatable")
	flags.StringVar(&f.instance, "instance", "", "`name` of this instance (instance, $GEOGATE_INSTANCE)")
	flags.StringVar(&f.dataDir, "data-dir", "", "`directory` for local state (data_dir, $GEOGATE_DATA_DIR)")
	flags.StringVar(&f.logLevel, "log-level", "", "`level` of the log: debug, info, warn or error (log.level, $GEOGATE_LOG__LEVEL)")
}

// configuration is what the sources together say.
type configuration struct {
	node.Config
	doc      *strict.Document // for places
	warnings []string
}

// load reads the file with the environment, and over that the flags, laid over it,
// and checks the result. Errors have places: a position in the file, or the name of the
// variable or flag.
func (f *configFlags) load(env environment) (configuration, error) {
	var c configuration
	if f.file == "" {
		return c, exitWith(exitUsage, "needs --config or $GEOGATE_CONFIG")
	}
	src, err := os.ReadFile(f.file)
	if err != nil {
		return c, exitWith(exitPrecondition, "read configuration: %w", err)
	}
	overlays, warnings := environmentOverlays(env)
	fromFlags, err := f.overlays()
	if err != nil {
		return c, err
	}
	c.Config = node.Defaults()
	if err := strict.CheckKind(f.file, src, ""); err != nil {
		return c, &exitError{code: exitPrecondition, err: err}
	}
	doc, err := strict.Read(f.file, src, &c.Config, append(overlays, fromFlags...)...)
	if err != nil {
		return c, &exitError{code: exitPrecondition, err: err}
	}
	c.doc = doc
	resolvePaths(&c.Config, doc, filepath.Dir(f.file))
	c.Config = c.Complete()
	if err := doc.Locate(c.Validate()); err != nil {
		return c, &exitError{code: exitPrecondition, err: err}
	}
	c.warnings = append(warnings, configWarnings(c.Config)...)
	return c, nil
}

// environmentOverlays are the values that variables give, in the order of their
// names.
func environmentOverlays(env environment) (overlays []strict.Overlay, warnings []string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		o := strict.Overlay{Source: "$" + envPrefix + name, Path: strings.Split(strings.ToLower(name), "__"), Text: env[name]}
		switch known := strict.CheckPath(node.Config{}, o.Path...) == nil; {
		case known, len(o.Path) > 1 && !reservedEnv(name):
			overlays = append(overlays, o)
		case !reservedEnv(name):
			// Not an error: a container platform sets GEOGATE_PORT and the like for a
			// service that is called geogate.
			warnings = append(warnings, o.Source+" is not a configuration key and is ignored")
		}
	}
	return overlays, warnings
}

// overlays are the values that flags give: those of --set in their order, and then
// those of flags of their own.
func (f *configFlags) overlays() ([]strict.Overlay, error) {
	var overlays []strict.Overlay
	for _, s := range f.set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, exitWith(exitUsage, "--set %s: want key=value", s)
		}
		overlays = append(overlays, strict.Overlay{Source: "--set", Path: strings.Split(key, "."), Text: value})
	}
	for _, o := range []strict.Overlay{
		{Source: "--instance", Path: []string{"instance"}, Text: f.instance},
		{Source: "--data-dir", Path: []string{"data_dir"}, Text: f.dataDir},
		{Source: "--log-level", Path: []string{"log", "level"}, Text: f.logLevel},
	} {
		if o.Text != "" {
			overlays = append(overlays, o)
		}
	}
	return overlays, nil
}

// resolvePaths lets relative paths in the file start at the file's directory, so
// that a configuration works wherever the process was started. Those of variables
// and flags start where their author was, in the working directory.
func resolvePaths(c *node.Config, doc *strict.Document, dir string) {
	if e := c.NATS.Embedded; e != nil {
		resolvePath(&e.SecretFile, doc, dir, "nats", "embedded", "secret_file")
	}
	for region, r := range c.Regions {
		connection := r.Kafka.Connection()
		for _, file := range connection.Files() {
			resolvePath(file.Name, doc, dir, strict.At("regions", region, "kafka").And(file.At...)...)
		}
	}
	for _, p := range []struct {
		value *string
		at    strict.Path
	}{
		{&c.DataDir, strict.At("data_dir")},
		{&c.Idempotency.SecretFile, strict.At("idempotency", "secret_file")},
		{&c.Policies.Residency, strict.At("policies", "residency")},
		{&c.Policies.Ownership, strict.At("policies", "ownership")},
	} {
		resolvePath(p.value, doc, dir, p.at...)
	}
}

func resolvePath(value *string, doc *strict.Document, dir string, at ...any) {
	inFile := doc.Has(at...) && doc.Position(at...).Line > 0
	if inFile && *value != "" && !filepath.IsAbs(*value) {
		*value = filepath.Join(dir, *value)
	}
}

// configWarnings are things that work but that their author probably did not
// mean.
func configWarnings(c node.Config) []string {
	var out []string
	if len(c.Regions) > 1 && len(c.Outgoing()) == 0 {
		out = append(out, fmt.Sprintf("no link starts in region %s: nothing written here reaches another region", c.Region))
	}
	if e := c.NATS.Embedded; len(c.Regions) > 1 && e != nil && e.Cluster == "" {
		out = append(out, fmt.Sprintf("region %s has an ownership register of its own: other regions do not see what is fenced in it; nats.mode quorum shares one", c.Region))
	}
	taken := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(c.Regions)) {
		for _, seed := range c.Regions[name].Kafka.Seeds {
			if other := taken[seed]; other != "" && other != name {
				out = append(out, fmt.Sprintf("regions %s and %s both have the seed %s: each region needs a Kafka cluster of its own", other, name, seed))
			}
			taken[seed] = name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Regions)) {
		k := c.Regions[name].Kafka
		if k.SASL != nil && k.TLS == nil && (k.SASL.Mechanism == connect.Plain || k.SASL.Mechanism == connect.OAuthBearer) {
			out = append(out, fmt.Sprintf("regions.%s.kafka.sasl: mechanism %s without tls sends credentials that others on the network can read and use; add tls: {}", name, k.SASL.Mechanism))
		}
	}
	return out
}

// checkFiles opens what the configuration names, as serve would.
func (c configuration) checkFiles() error {
	_, secretErr := c.Secret()
	var natsErr error
	if e := c.NATS.Embedded; e != nil {
		_, natsErr = e.Secret()
	}
	_, ownershipErr := c.Ownership()
	if errors.Is(ownershipErr, fs.ErrNotExist) {
		ownershipErr = fmt.Errorf("policies.ownership: %w", ownershipErr)
	}
	_, residencyErr := c.Residency()
	connectionErr := c.doc.Locate(c.CheckConnections())
	if err := errors.Join(connectionErr, secretErr, natsErr, ownershipErr, residencyErr); err != nil {
		return &exitError{code: exitPrecondition, err: err}
	}
	return nil
}
