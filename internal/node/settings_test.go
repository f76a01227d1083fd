package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/topics"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router/ownership"
)

// settingsWorld is the Kafka of region us, with what of an instance compares settings.
type settingsWorld struct {
	t      *testing.T
	seeds  []string
	client *kgo.Client
}

func newSettingsWorld(t *testing.T) *settingsWorld {
	t.Helper()
	fake, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &settingsWorld{t, fake.ListenAddrs(), client}
}

const settingsSecret = "0123456789abcdef0123456789abcdef"

// start gives what an instance that has read control compares, with a configuration that
// change may alter. The log goes to said.
func (w *settingsWorld) start(change func(*Config), said *bytes.Buffer) *settings {
	w.t.Helper()
	c := Defaults()
	c.Region, c.Instance = "us", "us-0"
	c.Regions = map[string]RegionConfig{"us": {ID: 1}, "eu": {ID: 2}}
	policy := `version: 1
kind: OwnershipPolicy
domains: [{name: air, match: [flights], kind: entity, mode: multi_writer, policy: lww, partitions: 2}]
`
	secret := settingsSecret
	if change != nil {
		change(&c)
	}
	switch c.Policies.Ownership {
	case "partitions":
		policy = strings.Replace(policy, "partitions: 2", "partitions: 3", 1)
	case "comment":
		policy = "# the same\n" + policy
	case "rule":
		policy = strings.Replace(policy, "lww", "keep", 1)
	}
	if c.Idempotency.SecretFile != "" {
		secret = c.Idempotency.SecretFile // no file here
	}
	n := &Node{cfg: c, own: 1, client: w.client, log: slog.New(slog.NewTextHandler(said, nil))}
	var err error
	if n.topology, err = c.Topology(); err != nil {
		w.t.Fatal(err)
	}
	if n.policy, err = ownership.ParsePolicy("policy", []byte(policy)); err != nil {
		w.t.Fatal(err)
	}
	n.control, err = control.New(control.Config{
		Region: 1, Regions: map[event.RegionID]string{1: "us", 2: "eu"}, Opts: []kgo.Opt{kgo.SeedBrokers(w.seeds...)}, Skipped: &n.skipped,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := topics.New(topics.Config{Region: "us", ID: 1, Topology: n.topology, Policy: n.policy, Client: w.client, Logger: n.log}).PrepareInternal(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.control.Run(ctx) }()
	w.t.Cleanup(func() { cancel(); <-ended })
	<-n.control.Ready()
	return &settings{node: n, secret: []byte(secret)}
}

// warnings are what the status says once all of control was read.
func (s *settings) all(t *testing.T) []warning.Warning {
	t.Helper()
	if err := s.node.control.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out warning.List
	s.Warnings(&out)
	return out.All()
}

// TestSettingsOfTheOwnRegion: which changes of the settings refuse the next start, which are
// a warning, and how an operator goes on.
func TestSettingsOfTheOwnRegion(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*Config)
		refused string // part of the message; "" starts
		said    string // part of the log; "" nothing is said
	}{
		"nothing":              {nil, "", ""},
		"comment in a file":    {func(c *Config) { c.Policies.Ownership = "comment" }, "", ""},
		"shorter window":       {func(c *Config) { c.Idempotency.Window = time.Hour }, "idempotency.window is 1h0m0s here, not 24h0m0s", "accept"},
		"longer window":        {func(c *Config) { c.Idempotency.Window = 48 * time.Hour }, "", "idempotency.window is 48h0m0s here"},
		"partitions":           {func(c *Config) { c.Policies.Ownership = "partitions" }, "declares other partitions", "accept"},
		"limits":               {func(c *Config) { c.Limits.RecordHeaders++ }, "limits of batches and records", "accept"},
		"rule":                 {func(c *Config) { c.Policies.Ownership = "rule" }, "", "has other domains"},
		"secret":               {func(c *Config) { c.Idempotency.SecretFile = "fedcba9876543210fedcba9876543210" }, "", "proven=false"},
		"secret and window":    {func(c *Config) { c.Idempotency = IdempotencyConfig{time.Hour, "fedcba9876543210fedcba9876543210"} }, "", "proven=false"},
		"a register":           {func(c *Config) { c.NATS.URLs = []string{"nats://127.0.0.1:1"} }, "", "register (nats) is solo here, not not configured"},
		"a region":             {func(c *Config) { c.Regions["ap"] = RegionConfig{ID: 3} }, "", "have other names or ids"},
		"of no account at all": {func(c *Config) { c.HTTP.MaxReaders = 3; c.Drain = time.Minute }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSettingsWorld(t)
			var said bytes.Buffer
			first := w.start(nil, &said)
			if err := first.admit(t.Context()); err != nil || strings.Contains(said.String(), "difference") {
				t.Fatalf("the first start: %v, %s", err, said.String())
			}
			said.Reset()
			next := w.start(c.change, &said)
			err := next.admit(t.Context())
			if c.refused == "" && err != nil || c.refused != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.refused) || !strings.Contains(err.Error(), "--accept-settings")) {
				t.Fatalf("the next start: %v", err)
			}
			if c.refused != "" {
				if all := first.all(t); len(all) != 0 {
					t.Errorf("a refused start has changed what the region runs with: %v", all)
				}
				next.accept = true
				if err := next.admit(t.Context()); err != nil {
					t.Errorf("the start that accepts: %v", err)
				}
			} else if (c.said != "") != strings.Contains(said.String(), "difference") || !strings.Contains(said.String(), c.said) {
				t.Errorf("the log says %s", said.String())
			}
			for _, text := range []string{settingsSecret[:8], "fedcba98"} {
				if strings.Contains(said.String(), text) || err != nil && strings.Contains(err.Error(), text) {
					t.Error("the log has the secret")
				}
			}
			same := c.said == ""
			if all := first.all(t); same != (len(all) == 0) || !same && (all[0].Code != warning.SettingsDisagree || all[0].Subject != "us" || all[0].Severity != warning.Error) {
				t.Errorf("the instance that runs warns of %v", all)
			}
			if all := next.all(t); len(all) != 0 {
				t.Errorf("the instance that started last warns of %v", all)
			}
			if err := w.start(c.change, &said).admit(t.Context()); err != nil {
				t.Errorf("the start after it: %v", err)
			}
		})
	}
}

// TestForgedSettings: what somebody without the secret writes, and what another region says,
// refuses no start; a warning stands until it agrees.
func TestForgedSettings(t *testing.T) {
	w := newSettingsWorld(t)
	var said bytes.Buffer
	first := w.start(nil, &said)
	if err := first.admit(t.Context()); err != nil {
		t.Fatal(err)
	}
	long := func(x *control.Settings) {
		x.Values[0].Value = milliseconds(1000 * time.Hour)
	}
	forged := first.own()
	long(&forged)
	peer := control.Settings{Region: 2, Values: first.own().Values}
	long(&peer)
	peer.Values[slices.IndexFunc(peer.Values, func(v control.SettingValue) bool { return v.ID == control.SettingResidency })].Value = []byte{1} // may differ
	peer.Prove([]byte(settingsSecret))
	put := func(topic string, key, value []byte) {
		t.Helper()
		if err := w.client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: key, Value: value}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	put(control.TopicControl, forged.AppendKey(nil), forged.AppendValue(nil))
	put(control.ControlFrom("eu"), peer.AppendKey(nil), peer.AppendValue(nil))
	put(control.ControlFrom("eu"), forged.AppendKey(nil), forged.AppendValue(nil)) // about another region
	for _, value := range [][]byte{nil, {}, {1}, {1, 0}, {1, 64}, []byte("\x01\xff garbage"), {9}} {
		put(control.TopicControl, []byte{byte(control.TypeSettings), 1}, value)
		put(control.TopicControl, []byte{byte(control.TypeSettings)}, value)
		put(control.TopicControl, []byte{byte(control.TypeSettings), 99}, value)
	}
	all := first.all(t)
	if len(all) != 2 || all[0].Subject != "us" || all[1].Subject != "eu" || !strings.Contains(all[1].Detail, "not 1000h") || strings.Contains(all[1].Detail, "residency") {
		t.Errorf("warnings %v", all)
	}
	next := w.start(nil, &said)
	if err := next.admit(t.Context()); err != nil || !strings.Contains(said.String(), "proven=false") {
		t.Errorf("start: %v, %s", err, said.String())
	}
	if all := next.all(t); len(all) != 1 || all[0].Subject != "eu" {
		t.Errorf("warnings %v", all)
	}
	if n := next.node.skipped.Total(); n == 0 {
		t.Error("garbage was not counted")
	}
}
