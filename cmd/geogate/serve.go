package main

import (
	"os"

	"github.com/spf13/cobra"
	"go.uber.org/fx"

	"github.com/geogate/geogate/internal/node"
)

func newServe(env environment) *cobra.Command {
	var flags configFlags
	var plain, accept bool
	cmd := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Run one instance of a region",
		Long: `Run one instance of a region until SIGTERM or SIGINT, then drain: answer what was accepted, finish
transactions, and end. A second signal ends at once.

Every configuration key can be set by an environment variable ($GEOGATE_ and the key in capitals, two
underscores between levels: GEOGATE_HTTP__LISTEN), or by --set. Flags win over the environment, and the
environment over the file. The log goes to standard error as JSON lines.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := flags.load(env)
			if err != nil {
				return err
			}
			if err := c.checkFiles(); err != nil {
				return err
			}
			log := newLogger(cmd.ErrOrStderr(), c.Log.Level)
			for _, w := range c.warnings {
				log.Warn("configuration", "warning", w)
			}
			log.Info("starting", "version", node.Version, "region", c.Region, "instance", c.Instance,
				"http", c.HTTP.Listen, "management", c.Management.Listen, "pid", os.Getpid())
			return runApp(fx.New(instances(log, uncompressed(plain), acceptSettings(accept), c.Config)), c.Drain, log)
		},
	}
	flags.bind(cmd, env)
	cmd.Flags().BoolVar(&accept, "accept-settings", false, "start although settings that must agree are not those that the region ran with, and use these from now on")
	// Not for production, and so in no help text and in no configuration: a leak scan
	// looks for bytes in sockets and files, and compression would hide them.
	cmd.Flags().BoolVar(&plain, "uncompressed", false, "do not compress batches, so that a leak scan sees every byte")
	_ = cmd.Flags().MarkHidden("uncompressed") // fails only for a flag that does not exist
	return cmd
}
