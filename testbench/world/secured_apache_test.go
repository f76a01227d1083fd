//go:build unix

package world_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/pki"
	"github.com/geogate/geogate/testbench/world"
)

// TestApacheSecured runs two regions whose instances know the listeners with TLS and SASL
// alone. The password of one cluster is changed under them: brokers ask open connections for
// it again, and refuse. Status says so; with the new password in the file all goes on without
// a restart.
func TestApacheSecured(t *testing.T) {
	apache.Require(t)
	dir, ca := t.TempDir(), pki.New(t, "brokers")
	caFile := pki.Put(t, dir, "ca.pem", ca.PEM())
	server := ca.Sign(t, time.Now().Add(30*24*time.Hour), "127.0.0.1")
	serverFile := pki.Put(t, dir, "server.pem", append(server.KeyPEM, server.CertPEM...))
	brokers := make(map[string]*apache.Broker)
	for _, region := range []string{"us", "eu"} {
		b, err := apache.Start(t.Context(), apache.Config{
			Dir: filepath.Join(dir, region), HeapMB: 512, Listeners: map[string]string{"SASL": "SASL_SSL"},
			Format: []string{"--add-scram", "SCRAM-SHA-512=[name=geogate,password=old-of-" + region + "]"},
			Properties: map[string]string{
				"ssl.keystore.type": "PEM", "ssl.keystore.location": serverFile, "sasl.enabled.mechanisms": "SCRAM-SHA-512",
				"listener.name.sasl.scram-sha-512.sasl.jaas.config":          "org.apache.kafka.common.security.scram.ScramLoginModule required;",
				"listener.name.sasl.scram-sha-512.connections.max.reauth.ms": "3000",
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Stop() })
		brokers[region] = b
		pki.Put(t, dir, region+".password", []byte("old-of-"+region))
	}
	w := world.Start(t, world.Options{
		Kafka: func(region string) []string { return brokers[region].Seeds() },
		Configure: func(c *node.Config) {
			for region, r := range c.Regions {
				r.Kafka = node.KafkaConfig{
					Seeds: []string{brokers[region].Listener("SASL")}, TLS: &connect.TLS{CAFile: caFile},
					SASL: &connect.SASL{Mechanism: connect.Scram512, Username: "geogate", PasswordFile: filepath.Join(dir, region+".password")},
				}
				c.Regions[region] = r
			}
		},
	})
	us, eu := w.Region("us"), w.Region("eu")
	us.Put(flights, "a", `1`)
	eu.Put(flights, "b", `2`)
	w.Settle()

	setPassword(t, brokers["us"], "new-of-us")
	for _, r := range []*world.Region{us, eu} {
		w.Eventually(r.Name+" to say that us refuses", func() error { return told(t, r, true) })
	}
	pki.Put(t, dir, "us.password", []byte("new-of-us"))
	for _, r := range []*world.Region{us, eu} {
		w.Eventually(r.Name+" to connect again", func() error { return told(t, r, false) })
	}
	us.Put(flights, "c", `3`)
	eu.Put(flights, "d", `4`)
	w.Settle()
	for _, r := range []*world.Region{us, eu} {
		for _, key := range []string{"a", "b", "c", "d"} {
			if _, err := r.Entity(flights, key); err != nil {
				t.Errorf("%s in %s: %v", key, r.Name, err)
			}
		}
	}
}

// setPassword changes the password of geogate.
func setPassword(t *testing.T, b *apache.Broker, password string) {
	t.Helper()
	cl, err := txn.NewClient(kgo.SeedBrokers(b.Seeds()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	got, err := kadm.NewClient(cl).AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{{
		User: "geogate", Mechanism: kadm.ScramSha512, Iterations: 4096, Password: password,
	}})
	if err == nil {
		err = got.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// told wants the status of a region to say, or not to say, that the brokers of us refuse; it
// must have no password.
func told(t *testing.T, r *world.Region, want bool) error {
	t.Helper()
	st, err := r.Status(limit(t))
	if err != nil {
		return err
	}
	is := false
	for _, x := range st.Warnings {
		is = is || x.Code == warning.KafkaAuthentication && x.Subject == "us" && strings.Contains(x.Detail, "regions.us.kafka.sasl")
		if strings.Contains(x.Detail, "-of-") {
			t.Errorf("a password is told: %s", x)
		}
	}
	if is != want {
		return fmt.Errorf("warnings are %v", st.Warnings)
	}
	return nil
}
