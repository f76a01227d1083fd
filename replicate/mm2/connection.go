package mm2

import (
	"fmt"
	"path"
	"strings"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/javaclient"
)

// connection reads how a cluster is reached, from its own settings and, where it has none, from
// those of the whole file. If one of them cannot be taken over, none is: the cluster gets
// neither TLS nor SASL, and the results say why.
func (m *importer) connection(c *Cluster) {
	var all []Setting
	at := make(map[string]Setting)
	for _, name := range append([]string{"security.protocol", "bootstrap.servers"}, securityNames...) {
		if s, ok := m.clusterSetting(c.Alias, name); ok {
			at[name] = s
			s.Key = name
			all = append(all, s)
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
			results[name] = Result{Outcome: TakenOver, Note: "connections are neither encrypted nor authenticated"}
		case strings.HasPrefix(name, "ssl.") && !tls || strings.HasPrefix(name, "sasl.") && !sasl:
			results[name] = Result{Outcome: NoEffect, Note: fmt.Sprintf("the security.protocol of cluster %s does not use it", c.Alias)}
		case tlsSetting(name):
			results[name] = Result{Outcome: TakenOver, To: member + "tls"}
		case saslSettings[name]:
			results[name] = Result{Outcome: TakenOver, To: member + "sasl"}
		}
	}
	usable := true
	for _, p := range problems {
		if p.Key != "bootstrap.servers" { // seeds reports it
			results[p.Key] = Result{Outcome: NoEquivalent, Note: p.Message}
			usable = false
		}
	}
	if !usable {
		c.LeftOut = true
		for name, r := range results {
			if r.Outcome == TakenOver {
				results[name] = Result{Outcome: NoEquivalent, Note: "not taken over, because another setting of this connection cannot be"}
			}
		}
		if _, ok := at["sasl.jaas.config"]; sasl && !ok {
			results["security.protocol"] = Result{Outcome: NoEquivalent, Note: "sasl.jaas.config is missing, so there are no credentials"}
		}
		return
	}
	m.files(c, cfg, results)
}

// protocolMember is the member that a protocol with either TLS or SASL turns on.
func protocolMember(tls bool) string {
	if tls {
		return "tls"
	}
	return "sasl"
}

// saslSettings are the SASL settings that are taken over.
var saslSettings = map[string]bool{
	"sasl.mechanism": true, "sasl.jaas.config": true, "sasl.oauthbearer.token.endpoint.url": true, "sasl.oauthbearer.scope": true,
	"sasl.oauthbearer.client.credentials.client.id": true, "sasl.oauthbearer.client.credentials.client.secret": true,
}

// tlsSetting tells whether a TLS setting is taken over.
func tlsSetting(name string) bool {
	switch name {
	case "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm", "ssl.key.password":
		return true
	}
	return strings.HasPrefix(name, "ssl.truststore.") || strings.HasPrefix(name, "ssl.keystore.")
}

// files names files for what Java's settings have as secrets and key stores. Those that do not
// exist yet are in c.Write.
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
		key := "sasl.oauthbearer.client.credentials.client.secret"
		if _, ok := results[key]; !ok {
			key = "sasl.jaas.config"
		}
		c.SASL.ClientSecretFile = write(key, ".client-secret", "the client's secret")
	}
	for name := range results {
		if strings.HasSuffix(name, "store.password") || name == "ssl.key.password" {
			results[name] = Result{Outcome: NoEffect, Note: "files in PEM have no password"}
		}
	}
}
