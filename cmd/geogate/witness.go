package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.uber.org/fx"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/strict"
)

func newWitness(env environment) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "witness --config FILE",
		Short: "Run one server of the ownership register in a third place",
		Long: `Run one server of the ownership register in a third place until SIGTERM or SIGINT. It votes, so that either
region can go on when the other is lost, and holds no data of any region. A server that has lost its data
directory comes back under another nats.embedded.name, and replaces the old one: geogate register replace.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadWitness(file)
			if err != nil {
				return err
			}
			log := newLogger(cmd.ErrOrStderr(), c.Log.Level)
			log.Info("starting witness", "version", node.Version, "name", c.NATS.Embedded.Name, "cluster", c.NATS.Embedded.Cluster, "pid", os.Getpid())
			return runApp(fx.New(fxLog(log), witness(log, c, true)), node.WitnessDrain, log)
		},
	}
	cmd.Flags().StringVar(&file, "config", env["CONFIG"], "configuration `file` ($GEOGATE_CONFIG)")
	return cmd
}

// witness wires a witness: its server of the register, and its probes. alone: the other
// servers are in other processes, and one of them can take the lead.
func witness(log *slog.Logger, c node.WitnessConfig, alone bool) fx.Option {
	return fx.Invoke(func(lc fx.Lifecycle, sd fx.Shutdowner) error {
		server, err := startNATS(*c.NATS.Embedded, c.DataDir)
		if err != nil {
			return fmt.Errorf("start embedded nats of the witness: %w", err)
		}
		lc.Append(fx.StopHook(server.Close))
		probes := []gateway.Probe{{Name: "register", Ready: func(context.Context) error { return server.Ready() }}}
		management, err := gateway.NewProbeServer(c.Management.Listener(), probes, newRegistry(), log)
		if err != nil {
			return errors.Join(fmt.Errorf("open probes of the witness: %w", err), server.Close())
		}
		log.Info("listening", "management", management.Addr())
		own(lc, sd, node.Component{Name: "witness/management", Run: management.Run})
		if alone {
			lc.Append(handOver(server, log))
		}
		return nil
	})
}

// isWitness reports whether a file is meant for a witness: it says something of nats
// and nothing of a region.
func isWitness(file string) bool {
	src, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	doc, err := strict.Parse(file, src)
	if err != nil {
		return false
	}
	return doc.Has("nats") && !doc.Has("region") && !doc.Has("regions")
}

// loadWitness reads a witness's file strictly. Relative paths start at the file's
// directory.
func loadWitness(file string) (node.WitnessConfig, error) {
	c := node.WitnessDefaults()
	if file == "" {
		return c, exitWith(exitUsage, "needs --config or $GEOGATE_CONFIG")
	}
	src, err := os.ReadFile(file)
	if err != nil {
		return c, exitWith(exitPrecondition, "read configuration: %w", err)
	}
	if err := strict.CheckKind(file, src, ""); err != nil {
		return c, &exitError{code: exitPrecondition, err: err}
	}
	doc, err := strict.Read(file, src, &c)
	if err != nil {
		return c, &exitError{code: exitPrecondition, err: err}
	}
	c = c.Complete()
	if err := doc.Locate(c.Validate()); err != nil {
		return c, &exitError{code: exitPrecondition, err: err}
	}
	for _, path := range []*string{&c.DataDir, &c.NATS.Embedded.SecretFile} {
		if !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(file), *path)
		}
	}
	if _, err := c.NATS.Embedded.Secret(); err != nil {
		return c, &exitError{code: exitPrecondition, err: err}
	}
	return c, nil
}
