package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/replicate/mm2"
)

func newMM2() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mm2",
		Short: "Move from MirrorMaker 2",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newMM2Import())
	return cmd
}

// Forms of the output of mm2 import.
const (
	formConfig = "config"
	formReport = "report"
	formJSON   = "json"
)

func newMM2Import() *cobra.Command {
	var output, region, secrets string
	var strictly bool
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Turn the file given to connect-mirror-maker.sh into a geogate configuration",
		Long: `Turn the file given to connect-mirror-maker.sh into the configuration of a geogate gateway, and say line by line
what became of each setting: taken over, changed, without effect here, without equivalent, or unknown. It reads this
file only, and connects to no cluster.

A gateway runs beside the cluster that its flows begin in, so each of those regions gets a configuration of its own;
--region chooses one. Settings without equivalent and unknown ones are warnings on standard error.

Exit codes: 0 done; 2 the command line is wrong, or --region is missing; 3 the file cannot be read or converted, or has
unknown settings and --strict is given.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{formConfig, formReport, formJSON}, output) {
				return exitWith(exitUsage, "-o %s: use %s, %s or %s", output, formConfig, formReport, formJSON)
			}
			src, err := os.ReadFile(args[0])
			if err != nil {
				return exitWith(exitPrecondition, "read MirrorMaker 2 configuration: %w", err)
			}
			im, err := mm2.ReadFile(args[0], src, secrets)
			if err != nil {
				return &exitError{code: exitPrecondition, err: err}
			}
			if strictly {
				if err := checkStrictly(args[0], im); err != nil {
					return err
				}
			}
			return printImport(cmd, args[0], im, output, region)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", formConfig, "`form` of the output: config, report or json")
	cmd.Flags().StringVar(&region, "region", "", "`region` whose configuration is printed, if flows begin in several")
	cmd.Flags().StringVar(&secrets, "secrets", "/etc/geogate", "`directory` of the secret files that the configuration names, which you have to write")
	cmd.Flags().BoolVar(&strictly, "strict", false, "fail if the file has settings that neither MirrorMaker 2 nor Kafka has")
	return cmd
}

// checkStrictly refuses what people would not want to find out later.
func checkStrictly(file string, im *mm2.Import) error {
	var lines []string
	for _, r := range im.Unknown() {
		lines = append(lines, fmt.Sprintf("%s:%d: %s: %s", file, r.Line, r.Key, r.Note))
	}
	for _, c := range im.Clusters {
		if c.LeftOut {
			lines = append(lines, fmt.Sprintf("%s: how cluster %s is reached cannot be taken over: -o report says which settings", file, c.Alias))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return exitWith(exitPrecondition, "%s", visible(strings.Join(lines, "\n"), "\n"))
}

func printImport(cmd *cobra.Command, file string, im *mm2.Import, output, region string) error {
	var sources []string // regions that run links
	for _, f := range im.Flows {
		if !slices.Contains(sources, f.From) {
			sources = append(sources, f.From)
		}
	}
	configs := make(map[string]string)
	for _, source := range sources {
		text, err := importedConfig(file, im, source)
		if err != nil {
			return err
		}
		configs[source] = text
	}
	switch output {
	case formReport:
		return printReport(cmd.OutOrStdout(), im)
	case formJSON:
		out, err := json.MarshalIndent(struct {
			*mm2.Import
			Configs map[string]string `json:"configs"`
		}{im, configs}, "", "  ")
		if err != nil {
			return fmt.Errorf("write json: %w", err)
		}
		fmt.Fprintln(cmd.OutOrStdout(), string(out))
		return nil
	}
	if region == "" && len(sources) == 1 {
		region = sources[0]
	}
	text, ok := configs[region]
	if !ok {
		problem := "choose one with --region"
		if region != "" {
			problem = fmt.Sprintf("not in %q; choose one of them with --region", region)
		}
		return exitWith(exitUsage, "the flows of %s begin in %s: %s", file, strings.Join(sources, ", "), problem)
	}
	warn := newPrinter(cmd.ErrOrStderr())
	for _, r := range im.Results {
		if r.Outcome == mm2.NoEquivalent || r.Outcome == mm2.Unknown {
			place := file
			if r.Line > 0 {
				place = fmt.Sprintf("%s:%d", file, r.Line)
			}
			warn.line("warning: %s: %s = %s: %s", place, r.Key, r.Value, r.Note)
		}
	}
	_, err := io.WriteString(cmd.OutOrStdout(), text)
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// importedFile is what an imported configuration sets; everything else is a default.
type importedFile struct {
	Version int                       `yaml:"version"`
	Region  string                    `yaml:"region"`
	DataDir string                    `yaml:"data_dir"`
	Regions map[string]importedRegion `yaml:"regions"`
	Links   []node.LinkConfig         `yaml:"links"`
}

type importedRegion struct {
	ID    int           `yaml:"id"`
	Kafka importedKafka `yaml:"kafka"`
}

type importedKafka struct {
	Seeds []string      `yaml:"seeds"`
	TLS   *importedTLS  `yaml:"tls,omitempty"`
	SASL  *importedSASL `yaml:"sasl,omitempty"`
}

// importedTLS and importedSASL are the members that an import can set.
type (
	importedTLS struct {
		CAFile     string `yaml:"ca_file,omitempty"`
		CertFile   string `yaml:"cert_file,omitempty"`
		KeyFile    string `yaml:"key_file,omitempty"`
		MinVersion string `yaml:"min_version,omitempty"`
	}
	importedSASL struct {
		Mechanism        string            `yaml:"mechanism"`
		Username         string            `yaml:"username,omitempty"`
		PasswordFile     string            `yaml:"password_file,omitempty"`
		TokenFile        string            `yaml:"token_file,omitempty"`
		TokenURL         string            `yaml:"token_url,omitempty"`
		ClientID         string            `yaml:"client_id,omitempty"`
		ClientSecretFile string            `yaml:"client_secret_file,omitempty"`
		Scopes           []string          `yaml:"scopes,omitempty"`
		Extensions       map[string]string `yaml:"extensions,omitempty"`
	}
)

func importedCluster(c mm2.Cluster) importedKafka {
	out := importedKafka{Seeds: c.Seeds}
	if t := c.TLS; t != nil {
		out.TLS = &importedTLS{t.CAFile, t.CertFile, t.KeyFile, t.MinVersion}
	}
	if s := c.SASL; s != nil {
		out.SASL = &importedSASL{s.Mechanism, s.Username, s.PasswordFile, s.TokenFile, s.TokenURL, s.ClientID, s.ClientSecretFile, s.Scopes, s.Extensions}
	}
	return out
}

// importedConfig returns the configuration of a region's gateway, checked as serve would. Files
// that it names are not read.
func importedConfig(file string, im *mm2.Import, region string) (string, error) {
	out := importedFile{Version: 1, Region: region, DataDir: "/var/lib/geogate", Regions: make(map[string]importedRegion)}
	for i, c := range im.Clusters {
		out.Regions[c.Alias] = importedRegion{ID: i + 1, Kafka: importedCluster(c)}
	}
	for _, f := range im.Flows {
		out.Links = append(out.Links, node.LinkConfig{Name: f.From + "-" + f.To, From: f.From, To: f.To, Include: f.Include, Exclude: f.Exclude})
	}
	text, err := strict.Marshal(out)
	if err != nil {
		return "", err
	}
	c := node.Defaults()
	// Lines are not those of file.
	doc, err := strict.Read("generated configuration", text, &c)
	if err == nil {
		err = doc.Locate(c.Complete().Validate())
	}
	if err != nil {
		return "", exitWith(exitPrecondition, "the configuration of region %s, made from %s, is not valid:\n%w", region, file, err)
	}
	var header strings.Builder
	fmt.Fprintf(&header, "# Written by geogate mm2 import; -o report says what became of each setting.\n# The gateway of region %s. Check data_dir and the listeners (geogate config view).\n", region)
	for _, c := range im.Clusters {
		if c.LeftOut {
			fmt.Fprintf(&header, "# Region %s: how its cluster is reached could not be taken over (-o report). Without tls and sasl connections are not encrypted.\n", c.Alias)
		}
		for _, f := range c.Write {
			fmt.Fprintf(&header, "# Write into %s: %s.\n", visible(f.File, ""), visible(f.What, ""))
		}
	}
	return header.String() + string(text), nil
}

func printReport(out io.Writer, im *mm2.Import) error {
	p := newPrinter(out)
	p.row("LINE", "SETTING", "OUTCOME", "IN GEOGATE", "NOTE")
	counts := make(map[mm2.Outcome]int)
	for _, r := range im.Results {
		line := "default"
		if r.Line > 0 {
			line = fmt.Sprint(r.Line)
		}
		counts[r.Outcome]++
		p.row(line, r.Key, outcomeText(r.Outcome), orDash(r.To), orDash(r.Note))
	}
	p.line("\n%d settings: %d taken over, %d changed, %d without effect here, %d without equivalent, %d unknown", len(im.Results),
		counts[mm2.TakenOver], counts[mm2.Changed], counts[mm2.NoEffect], counts[mm2.NoEquivalent], counts[mm2.Unknown])
	return p.flush()
}

func outcomeText(o mm2.Outcome) string { return strings.ReplaceAll(string(o), "_", " ") }
