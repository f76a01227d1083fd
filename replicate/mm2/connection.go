package mm2

import (
	"fmt"
	"path"
	"strings"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/javaclient"
)

// connection reads how a cluster is reached: its own settings, and those of the whole file
// where it has none. What cannot be taken over leaves the connection out, and is a result.
func (m *importer) connection(c *Cluster) {
	var all []javaclient.Setting
	at := make(map[string]Setting)
	for _, name := range append([]string{"security.protocol", "bootstrap.servers"}, securityNames...) {
		if s, ok := m.clusterSetting(c.Alias, name); ok {
			all = append(all, javaclient.Setting{Line: s.Line, Key: name, Value: s.Value})
			at[name] = s
		}
	}
	cfg, problems := javaclient.Connection(all, "")
	results := make(map[string]Result)
	m.security[c.Alias] = results
	protocol := strings.ToUpper(at["security.protocol"].Value)
	tls, sasl := strings.HasSuffix(protocol, "SSL"), strings.HasPrefix(protocol, "SASL")
	for name := range at {
		member := "regions." + c.Alias + ".kafka."
		switch {
		case name == "security.protocol" && tls && sasl:
			results[name] = Result{Outcome: TakenOver, To: member + "tls, " + member + "sasl"}
		case name == "security.protocol" && (tls || sasl):
			results[name] = Result{Outcome: TakenOver, To: member + protocolMember(tls)}
		case name == "security.protocol":
			results[name] = Result{Outcome: TakenOver, Note: "connections are in the clear"}
		case strings.HasPrefix(name, "ssl.") && !tls || strings.HasPrefix(name, "sasl.") && !sasl:
			results[name] = Result{Outcome: NoEffect, Note: fmt.Sprintf("security.protocol of cluster %s does not use it", c.Alias)}
		case storeSetting(name):
			results[name] = Result{Outcome: TakenOver, To: member + "tls"}
		case connectionReads[name]:
			results[name] = Result{Outcome: TakenOver, To: member + "sasl"}
		}
	}
	usable := true
	for _, p := range problems {
		if p.Key != "bootstrap.servers" { // said elsewhere
			results[p.Key] = Result{Outcome: NoEquivalent, Note: p.Message}
			usable = false
		}
	}
	if !usable {
		for name, r := range results {
			if r.Outcome == TakenOver {
				results[name] = Result{Outcome: NoEquivalent, Note: "not taken over, since another setting of this connection cannot be"}
			}
		}
		if _, ok := at["sasl.jaas.config"]; sasl && !ok {
			results["security.protocol"] = Result{Outcome: NoEquivalent, Note: "there is no sasl.jaas.config, so nobody to log in as"}
		}
		return
	}
	m.files(c, cfg, results)
}

func protocolMember(tls bool) string {
	if tls {
		return "tls"
	}
	return "sasl"
}

// connectionReads are settings of SASL that a connection is made of.
var connectionReads = map[string]bool{
	"sasl.mechanism": true, "sasl.jaas.config": true, "sasl.oauthbearer.token.endpoint.url": true, "sasl.oauthbearer.scope": true,
	"sasl.oauthbearer.client.credentials.client.id": true, "sasl.oauthbearer.client.credentials.client.secret": true,
}

func storeSetting(name string) bool {
	switch name {
	case "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm", "ssl.key.password":
		return true
	}
	return strings.HasPrefix(name, "ssl.truststore.") || strings.HasPrefix(name, "ssl.keystore.")
}

// files lets the connection name files where Java's has secrets and key stores.
func (m *importer) files(c *Cluster, cfg connect.Config, results map[string]Result) {
	c.TLS, c.SASL = cfg.TLS, cfg.SASL
	write := func(key, suffix, what string) string {
		file := path.Join(m.secrets, c.Alias+suffix)
		c.Write = append(c.Write, NewFile{File: file, What: what})
		r := results[key]
		r.Outcome, r.Note = Changed, fmt.Sprintf("write %s into %s", what, file)
		results[key] = r
		return file
	}
	if s := cfg.Stores.Trust; s != nil {
		c.TLS.CAFile = s.File
		if s.Type != connect.StorePEM {
			c.TLS.CAFile = write("ssl.truststore.location", "-ca.pem", "the certificates of "+s.File+" in PEM")
		}
	}
	if s := cfg.Stores.Key; s != nil {
		c.TLS.CertFile, c.TLS.KeyFile = s.File, s.File
		if s.Type != connect.StorePEM {
			c.TLS.CertFile = write("ssl.keystore.location", "-key.pem", "the private key of "+s.File+" and its certificates, in PEM")
			c.TLS.KeyFile = c.TLS.CertFile
		}
	}
	if cfg.Secrets.Password != "" {
		c.SASL.PasswordFile = write("sasl.jaas.config", ".password", "the password")
	}
	if cfg.Secrets.ClientSecret != "" {
		c.SASL.ClientSecretFile = write("sasl.jaas.config", ".client-secret", "the client's secret")
	}
	for name := range results {
		if strings.HasSuffix(name, "store.password") || name == "ssl.key.password" {
			results[name] = Result{Outcome: NoEffect, Note: "files in PEM have no password"}
		}
	}
}
