package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/dig"
	"go.uber.org/fx"
	"go.uber.org/fx/fxevent"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/redact"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/register"
)

// uncompressed means that no batch is compressed; see serve's flag.
type uncompressed bool

// acceptSettings means that settings which differ from those before do not refuse the start;
// see serve's flag.
type acceptSettings bool

// instances wires the instances that run in this process: one for serve, one per
// region for the demo. All embedded Kafkas open before the first component
// starts and close after the last has stopped, since links write across regions.
func instances(log *slog.Logger, batches uncompressed, accept acceptSettings, configs ...node.Config) fx.Option {
	options := []fx.Option{
		fxLog(log),
		fx.Supply(batches, accept),
		fx.Provide(func(lc fx.Lifecycle, sd fx.Shutdowner) (kafkas, error) { return openKafkas(lc, sd, log, configs) }),
		fx.Provide(func(lc fx.Lifecycle) (servers, error) { return openNATS(lc, configs) }),
	}
	for _, c := range configs {
		options = append(options, instance(c, log))
	}
	if len(configs) == 1 {
		// The last hook that is added is the first to stop: all still works then.
		options = append(options, fx.Invoke(func(lc fx.Lifecycle, nats servers) {
			for _, server := range nats {
				lc.Append(handOver(server, log))
			}
		}))
	}
	return fx.Options(options...)
}

// instance wires one instance of a region: the node and its components.
func instance(c node.Config, log *slog.Logger) fx.Option {
	return fx.Module(c.Region,
		fx.Supply(c, fx.Private),
		fx.Provide(
			func() *slog.Logger { return log.With("region", c.Region, "instance", c.Instance) },
			newRegistry, newNode,
			fx.Private,
		),
		fx.Invoke(func(lc fx.Lifecycle, sd fx.Shutdowner, n *node.Node, log *slog.Logger) {
			log.Info("listening", "http", n.DataAddr(), "management", n.ManagementAddr())
			components := n.Components()
			for i := range components {
				components[i].Name = c.Region + "/" + components[i].Name
			}
			own(lc, sd, components...)
		}),
	)
}

// newRegistry makes the metrics registry of an instance, with those of the
// process. There is no global one, so that two instances do not mix.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// kafkas are the seeds of the embedded Kafkas by region; a region with a cluster
// of its own is not among them.
type kafkas map[string][]string

// openKafkas starts the embedded Kafkas. One that cannot write ends the program.
func openKafkas(lc fx.Lifecycle, sd fx.Shutdowner, log *slog.Logger, configs []node.Config) (kafkas, error) {
	open := make(kafkas)
	for _, c := range configs {
		k := c.Own().Kafka.Embedded
		if k == nil {
			continue
		}
		server, err := embed.StartKafka(embed.Kafka{Listen: k.Listen, DataDir: filepath.Join(c.DataDir, "kafka"), Logger: log.With("region", c.Region)})
		if err != nil {
			return nil, fmt.Errorf("start embedded kafka of region %s: %w", c.Region, err)
		}
		lc.Append(fx.StopHook(server.Close))
		own(lc, sd, node.Component{Name: c.Region + "/embedded kafka", Run: server.Run})
		open[c.Region] = server.Seeds()
	}
	return open, nil
}

// servers are the embedded NATS servers by region.
type servers map[string]*embed.NATSServer

// openNATS starts the embedded NATS servers that configurations ask for.
func openNATS(lc fx.Lifecycle, configs []node.Config) (servers, error) {
	open := make(servers)
	for _, c := range configs {
		n := c.NATS.Embedded
		if n == nil {
			continue
		}
		server, err := startNATS(*n, c.DataDir)
		if err != nil {
			return nil, fmt.Errorf("start embedded nats of region %s: %w", c.Region, err)
		}
		lc.Append(fx.StopHook(server.Close))
		open[c.Region] = server
	}
	return open, nil
}

// handOverTime bounds the handing over of what an embedded server of the register leads.
const handOverTime = 2 * time.Second

// handOver has a server of the register hand over what it leads before it stops: else the
// others notice after seconds that they have no leader, and no lease is renewed meanwhile.
func handOver(server *embed.NATSServer, log *slog.Logger) fx.Hook {
	return fx.StopHook(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, handOverTime)
		defer cancel()
		if err := server.HandOver(ctx, register.StreamName); err != nil {
			log.Warn("the register may be without a leader for some seconds", "err", err)
		}
	})
}

// startNATS starts an embedded server with its streams under the data directory.
func startNATS(n node.EmbeddedNATS, dataDir string) (*embed.NATSServer, error) {
	secret, err := n.Secret()
	if err != nil {
		return nil, err
	}
	c := embed.NATS{
		Name: n.Name, ClusterListen: n.Cluster, Routes: n.Routes, Advertise: n.Advertise, Secret: secret,
		StoreDir: filepath.Join(dataDir, "nats"),
	}
	c.Publish, c.Subscribe = register.Permissions()
	return embed.StartNATS(c)
}

func newNode(c node.Config, log *slog.Logger, registry *prometheus.Registry, open kafkas, nats servers, batches uncompressed, accept acceptSettings) (*node.Node, error) {
	deps := node.Deps{Logger: log, Registry: registry, Seeds: open[c.Region], Uncompressed: bool(batches), AcceptSettings: bool(accept)}
	if server, ok := nats[c.Region]; ok {
		deps.NATS, deps.OwnRegister = server.Dialer(), c.NATS.Embedded.Cluster == ""
		if !deps.OwnRegister {
			deps.Servers, deps.ServerID = peers{server}, embed.PeerID
		}
	}
	n, err := node.New(c, deps)
	if err != nil {
		return nil, fmt.Errorf("assemble instance %s: %w", c.Instance, err)
	}
	return n, nil
}

// peers implements ownership.Servers with the cluster of an embedded server.
type peers struct{ server *embed.NATSServer }

// List implements ownership.Servers.
func (p peers) List(ctx context.Context) (list []ownership.Server, err error) {
	all, err := p.server.Peers(ctx)
	for _, x := range all {
		list = append(list, ownership.Server{Name: x.Name, ID: x.ID, Leader: x.Leader, Current: x.Current, Offline: x.Offline, Silent: x.Active.Seconds()})
	}
	return list, err
}

// Remove implements ownership.Servers.
func (p peers) Remove(ctx context.Context, name string) error { return p.server.RemovePeer(ctx, name) }

// newLogger writes JSON lines to w, errors without keys and values, and warnings that are
// repeated once in ten seconds. The level is one that Validate accepts.
func newLogger(w io.Writer, level string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	return slog.New(warning.LogSeldom(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l, ReplaceAttr: redact.Attr})))
}

// fxLog sends fx's own events to the log where they help: its errors are
// returned and reported once, the rest is for debugging.
func fxLog(log *slog.Logger) fx.Option {
	return fx.WithLogger(func() fxevent.Logger {
		l := &fxevent.SlogLogger{Logger: log}
		l.UseLogLevel(slog.LevelDebug)
		l.UseErrorLevel(slog.LevelDebug)
		return l
	})
}

// exitDone ends an app that has nothing left to do; the program's exit code is exitOK.
const exitDone = -1

// startTimeout bounds the hooks of starting, which only start goroutines.
// Opening stores and engines happens before, when the app is built.
const startTimeout = 30 * time.Second

// runApp runs an app until a signal, or a component that ended by itself, stops
// it. Stopping may take as long as drain says; a second signal cuts it short.
func runApp(app *fx.App, drain time.Duration, log *slog.Logger) error {
	if err := app.Err(); err != nil {
		return startError(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	err := app.Start(ctx)
	cancel()
	if err != nil {
		return startError(err)
	}
	reason := <-app.Wait()
	switch reason.ExitCode {
	case exitOK: // nothing but a signal ends an app with this code
		log.Info("stopping", "signal", fmt.Sprint(reason.Signal), "drain", drain.String())
	case exitDone:
		log.Info("stopping, since all is done", "drain", drain.String())
		reason.ExitCode = exitOK
	default:
		log.Error("stopping, since a component ended by itself; the last line says which", "exit_code", reason.ExitCode, "drain", drain.String())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel = context.WithTimeout(ctx, drain)
	defer cancel()
	if err := app.Stop(ctx); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	log.Info("stopped")
	if reason.ExitCode != exitOK {
		return exitWith(reason.ExitCode, "a component ended")
	}
	return nil
}

// startError gives errors of starting the code of an unmet precondition, unless
// they have one of their own: a port in use, a directory that another process
// has, a broker that is not there. Nothing was changed.
func startError(err error) error {
	err = dig.RootCause(err) // without the path through the constructors
	if exitCode(err) != exitInternal {
		return fmt.Errorf("start: %w", err)
	}
	return exitWith(exitPrecondition, "start: %w", err)
}
