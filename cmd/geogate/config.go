package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"

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

// override is one value that does not come from the file.
type override struct {
	source string // as people know it: $GEOGATE_HTTP__LISTEN, --set
	path   []string
	value  string
}

// configuration is what the sources together say.
type configuration struct {
	node.Config
	warnings []string
}

// load reads the file, lays the environment and then the flags over it, and
// checks the result. Errors carry places: of the file for what stands there, the
// name of the variable or flag for the rest.
func (f *configFlags) load(env environment) (configuration, error) {
	var c configuration
	if f.file == "" {
		return c, exitWith(exitUsage, "needs --config or $GEOGATE_CONFIG")
	}
	src, err := os.ReadFile(f.file)
	if err != nil {
		return c, exitWith(exitPrecondition, "read configuration: %w", err)
	}
	// Strictly first, and alone: a mistake in the file is one also where the
	// environment covers it.
	file := node.Defaults()
	doc, err := strict.Read(f.file, src, &file)
	if err != nil {
		return c, &exitError{code: exitPrecondition, err: err}
	}
	overrides, warnings, err := f.overrides(env)
	if err == nil {
		c.Config, err = layer(doc, filepath.Dir(f.file), overrides)
	}
	if err != nil {
		return c, &exitError{code: exitPrecondition, err: err}
	}
	c.warnings = append(warnings, configWarnings(c.Config)...)
	return c, nil
}

// overrides gives the values of the environment, in the order of their names,
// and then those of the flags: later ones win.
func (f *configFlags) overrides(env environment) (all []override, warnings []string, err error) {
	var errs strict.Errors
	refuse := func(source string, err error) {
		var one *strict.Error
		if !errors.As(err, &one) {
			one = &strict.Error{Message: err.Error()}
		}
		one.File = source
		errs.All = append(errs.All, one)
	}
	for name, value := range env {
		path := strings.Split(strings.ToLower(name), "__")
		o := override{source: "$" + envPrefix + name, path: path, value: value}
		if err := strict.CheckPath(node.Config{}, path...); err == nil {
			all = append(all, o)
		} else if reservedEnv(name) {
			continue
		} else if len(path) > 1 {
			refuse(o.source, err)
		} else {
			// Not an error: a container platform sets GEOGATE_PORT and the like
			// for a service that is called geogate.
			warnings = append(warnings, fmt.Sprintf("%s is no configuration key and is ignored", o.source))
		}
	}
	slices.SortFunc(all, func(a, b override) int { return cmp.Compare(a.source, b.source) })
	slices.Sort(warnings)
	for _, s := range f.set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, nil, exitWith(exitUsage, "--set %s: want key=value", s)
		}
		o := override{source: "--set", path: strings.Split(key, "."), value: value}
		if err := strict.CheckPath(node.Config{}, o.path...); err != nil {
			refuse(o.source, err)
		}
		all = append(all, o)
	}
	for _, flag := range []override{
		{"--instance", []string{"instance"}, f.instance},
		{"--data-dir", []string{"data_dir"}, f.dataDir},
		{"--log-level", []string{"log", "level"}, f.logLevel},
	} {
		if flag.value != "" {
			all = append(all, flag)
		}
	}
	for _, o := range all {
		if err := o.check(); err != nil {
			refuse(o.source, err)
		}
	}
	if len(errs.All) > 0 {
		return nil, nil, sorted(&errs)
	}
	return all, warnings, nil
}

// check tries the value alone, so that a complaint names its source.
func (o override) check() error {
	if strict.CheckPath(node.Config{}, o.path...) != nil {
		return nil // reported already
	}
	k := koanf.New(".")
	if err := o.lay(k); err != nil {
		return err
	}
	var scratch node.Config
	err := unmarshal(k, &scratch)
	var decode *mapstructure.DecodeError
	if errors.As(err, &decode) {
		return &strict.Error{Path: o.at(), Message: fmt.Sprintf("%q cannot be read: %v", o.value, decode.Unwrap())}
	}
	return err
}

func (o override) at() strict.Path {
	var path strict.Path
	for _, key := range o.path {
		path = path.And(key)
	}
	return path
}

func (o override) lay(k *koanf.Koanf) error {
	if err := k.Set(strings.Join(o.path, k.Delim()), o.value); err != nil {
		return fmt.Errorf("lay %s over the file: %w", o.source, err)
	}
	return nil
}

// provider hands a map that was read strictly to koanf.
type provider map[string]any

// Read implements koanf.Provider.
func (p provider) Read() (map[string]any, error) { return p, nil }

// ReadBytes implements koanf.Provider.
func (p provider) ReadBytes() ([]byte, error) {
	return nil, errors.New("a decoded file has no bytes")
}

// layer makes one configuration of the file and what lies over it. Relative
// paths in the file start at the file's directory, so that a configuration works
// wherever the process was started; those of variables and flags start where
// their author was, in the working directory.
func layer(doc *strict.Document, dir string, overrides []override) (node.Config, error) {
	k := koanf.New(".")
	if err := k.Load(provider(doc.Map()), nil); err != nil {
		return node.Config{}, fmt.Errorf("lay out the file: %w", err)
	}
	for _, path := range []string{"data_dir", "idempotency.secret_file", "policies.residency", "policies.ownership"} {
		if value, ok := k.Get(path).(string); ok && value != "" && !filepath.IsAbs(value) {
			if err := k.Set(path, filepath.Join(dir, value)); err != nil {
				return node.Config{}, fmt.Errorf("resolve %s: %w", path, err)
			}
		}
	}
	sources := make(map[string]string)
	for _, o := range overrides {
		if err := o.lay(k); err != nil {
			return node.Config{}, err
		}
		sources[o.at().String()] = o.source
	}
	c := node.Defaults()
	if err := unmarshal(k, &c); err != nil {
		return node.Config{}, fmt.Errorf("join configuration: %w", err)
	}
	c = c.Complete()
	return c, place(c.Validate(), doc, sources)
}

// place gives problems their places: a variable's or flag's name where it gave
// the value, a position in the file otherwise.
func place(err error, doc *strict.Document, sources map[string]string) error {
	var problems *strict.Problems
	if !errors.As(err, &problems) {
		return err
	}
	var inFile strict.Problems
	var errs strict.Errors
	for _, p := range problems.All {
		if source, ok := sources[p.Path.String()]; ok {
			errs.All = append(errs.All, &strict.Error{
				Position: strict.Position{File: source}, Path: p.Path, Message: p.Message, Nearest: p.Nearest,
			})
		} else {
			inFile.All = append(inFile.All, p)
		}
	}
	var located *strict.Errors
	if errors.As(doc.Locate(inFile.Err()), &located) {
		errs.All = append(located.All, errs.All...)
	}
	return &errs
}

// sorted orders errors that have no lines by their source.
func sorted(errs *strict.Errors) error {
	slices.SortStableFunc(errs.All, func(a, b *strict.Error) int { return cmp.Compare(a.File, b.File) })
	return errs
}

func unmarshal(k *koanf.Koanf, into *node.Config) error {
	return k.UnmarshalWithConf("", into, koanf.UnmarshalConf{Tag: "yaml", DecoderConfig: &mapstructure.DecoderConfig{
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			mapstructure.StringToTimeDurationHookFunc(), mapstructure.TextUnmarshallerHookFunc(), mapstructure.StringToSliceHookFunc(","),
		),
		ErrorUnused:      true,
		WeaklyTypedInput: true, // "true" and "5" from the environment
		TagName:          "yaml",
	}})
}

// configWarnings are things that work but that their author probably did not
// mean.
func configWarnings(c node.Config) []string {
	var out []string
	if len(c.Regions) > 1 && len(c.Outgoing()) == 0 {
		out = append(out, fmt.Sprintf("no link begins in region %s: nothing that is written here reaches another region", c.Region))
	}
	if e := c.NATS.Embedded; len(c.Regions) > 1 && e != nil && e.Cluster == "" {
		out = append(out, fmt.Sprintf("the ownership register of region %s is its own: no other region learns what is fenced in it; nats.mode quorum has one for all", c.Region))
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
	return out
}

// checkFiles opens what the configuration names, as serve would.
func (c configuration) checkFiles() error {
	_, secretErr := c.Secret()
	_, ownershipErr := c.Ownership()
	if errors.Is(ownershipErr, fs.ErrNotExist) {
		ownershipErr = fmt.Errorf("policies.ownership: %w", ownershipErr)
	}
	_, residencyErr := c.Residency()
	if err := errors.Join(secretErr, ownershipErr, residencyErr); err != nil {
		return &exitError{code: exitPrecondition, err: err}
	}
	return nil
}
