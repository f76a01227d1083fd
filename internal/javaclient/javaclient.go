// Package javaclient reads the settings of Java's Kafka clients that say how a cluster is
// reached: security.protocol, sasl.jaas.config, ssl.truststore.location and the others.
package javaclient

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/geogate/geogate/internal/connect"
	"github.com/geogate/geogate/internal/strict"
)

// Setting is a setting in a file, with the line where it begins, from 1.
type Setting struct {
	Line  int
	Key   string
	Value string
}

// Problem says why a setting cannot be used.
type Problem struct {
	Line    int // 0: the setting is missing
	Key     string
	Message string
}

// String is the problem on one line.
func (p Problem) String() string { return fmt.Sprintf("line %d: %s: %s", p.Line, p.Key, p.Message) }

// Connection returns how a cluster is reached, from the settings of one of its clients. Only
// keys with the prefix, such as "us.", are read; the last one counts if a key comes twice. If
// there are problems, the configuration must not be used.
func Connection(all []Setting, prefix string) (connect.Config, []Problem) {
	s := &settings{prefix: prefix, of: make(map[string]Setting)}
	for _, e := range all {
		if key, ok := strings.CutPrefix(e.Key, prefix); ok {
			e.Value = strings.TrimSpace(e.Value)
			s.of[key] = e
		}
	}
	var cfg connect.Config
	for _, seed := range strings.Split(s.get("bootstrap.servers", ""), ",") {
		if seed = strings.TrimSpace(seed); seed != "" {
			cfg.Seeds = append(cfg.Seeds, seed)
		}
	}
	if len(cfg.Seeds) == 0 {
		s.complain("bootstrap.servers", "names no brokers")
	}
	protocol := strings.ToUpper(s.get("security.protocol", "PLAINTEXT"))
	switch protocol {
	case "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL":
	default:
		s.complain("security.protocol", "%q is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL", protocol)
	}
	if strings.HasSuffix(protocol, "SSL") {
		s.tls(&cfg)
	}
	if strings.HasPrefix(protocol, "SASL") {
		s.sasl(&cfg)
	}
	s.providers()
	slices.SortStableFunc(s.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return cfg, s.problems
}

// settings are the settings of one client, by their keys without the prefix.
type settings struct {
	prefix   string
	of       map[string]Setting
	problems []Problem
}

func (s *settings) get(key, otherwise string) string {
	if e, ok := s.of[key]; ok && e.Value != "" {
		return e.Value
	}
	return otherwise
}

func (s *settings) complain(key, format string, args ...any) {
	s.problems = append(s.problems, Problem{s.of[key].Line, s.prefix + key, fmt.Sprintf(format, args...)})
}

// connectionPrefixes begin the keys that this package reads.
var connectionPrefixes = []string{"bootstrap.servers", "security.", "sasl.", "ssl."}

// providers complains of values that a Java client takes from a configuration provider.
func (s *settings) providers() {
	for key, e := range s.of {
		relevant := slices.ContainsFunc(connectionPrefixes, func(p string) bool { return strings.HasPrefix(key, p) })
		if relevant && strings.Contains(e.Value, "${") {
			s.complain(key, "a value from a configuration provider, ${…}, cannot be looked up: write the value itself")
		}
	}
}

// tls reads the settings that begin with "ssl.".
func (s *settings) tls(cfg *connect.Config) {
	cfg.TLS = &connect.TLS{}
	if e, ok := s.of["ssl.endpoint.identification.algorithm"]; ok && !strings.EqualFold(e.Value, "https") {
		s.complain("ssl.endpoint.identification.algorithm", "names in certificates are always checked: without that anybody with a certificate can read and write; "+
			"remove the line, and give brokers certificates with their names")
	}
	versions := s.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3")
	switch {
	case strings.Contains(versions, "TLSv1.2"):
	case strings.Contains(versions, "TLSv1.3"):
		cfg.TLS.MinVersion = "1.3"
	default:
		s.complain("ssl.enabled.protocols", "%q has neither TLSv1.2 nor TLSv1.3", versions)
	}
	for _, key := range []string{"ssl.truststore.certificates", "ssl.keystore.key", "ssl.keystore.certificate.chain"} {
		if s.get(key, "") != "" {
			s.complain(key, "certificates and keys are read from files: write it into one, and name that with ssl.truststore.location or ssl.keystore.location and type PEM")
		}
	}
	for _, key := range []string{"ssl.engine.factory.class", "ssl.provider", "ssl.cipher.suites", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm"} {
		if s.get(key, "") != "" {
			s.complain(key, "has no equivalent: remove the line")
		}
	}
	cfg.Stores.Trust = s.store("ssl.truststore.")
	if cfg.Stores.Key = s.store("ssl.keystore."); cfg.Stores.Key != nil {
		cfg.Stores.Key.KeyPassword = s.get("ssl.key.password", "")
		if cfg.Stores.Key.Type == connect.StorePEM && cfg.Stores.Key.KeyPassword != "" {
			s.complain("ssl.key.password", "an encrypted key in PEM is not read; decrypt it with openssl pkey, or use PKCS12")
		}
	}
}

// store reads the settings of one store; nil if there is none.
func (s *settings) store(begin string) *connect.Store {
	file := s.get(begin+"location", "")
	if file == "" {
		return nil
	}
	out := &connect.Store{
		File: file, Type: strings.ToUpper(s.get(begin+"type", connect.StoreJKS)), Password: s.get(begin+"password", ""),
		At: strict.At(s.prefix + begin + "location"),
	}
	switch out.Type {
	case connect.StorePEM:
	case connect.StoreJKS, connect.StorePKCS12:
		if out.Password == "" {
			s.complain(begin+"location", "a store of type %s needs %spassword", out.Type, s.prefix+begin)
		}
	default:
		s.complain(begin+"type", "%q is none of PEM, PKCS12, JKS", out.Type)
	}
	return out
}

// sasl reads the settings that begin with "sasl.".
func (s *settings) sasl(cfg *connect.Config) {
	cfg.SASL = &connect.SASL{}
	name := s.get("sasl.mechanism", "GSSAPI")
	j, err := parseJAAS(s.get("sasl.jaas.config", ""))
	if err != nil {
		s.complain("sasl.jaas.config", "%v", err)
		return
	}
	module := map[string]string{
		"PLAIN": "PlainLoginModule", "SCRAM-SHA-256": "ScramLoginModule", "SCRAM-SHA-512": "ScramLoginModule",
		"OAUTHBEARER": "OAuthBearerLoginModule", "AWS_MSK_IAM": "IAMLoginModule",
	}[name]
	switch {
	case module == "":
		s.complain("sasl.mechanism", "%s is not supported, only PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER and AWS_MSK_IAM are", name)
		return
	case !strings.HasSuffix(j.module, "."+module):
		s.complain("sasl.jaas.config", "mechanism %s needs the module %s, not another one", name, module)
		return
	}
	for _, key := range []string{"sasl.client.callback.handler.class", "sasl.login.class"} {
		if v := s.get(key, ""); v != "" && !strings.HasSuffix(v, ".IAMClientCallbackHandler") {
			s.complain(key, "a Java class cannot be used: remove the line")
		}
	}
	cfg.SASL.Mechanism = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	switch cfg.SASL.Mechanism {
	case connect.OAuthBearer:
		s.oauth(cfg, j)
	case connect.AWSMSKIAM:
		for _, option := range slices.Sorted(maps.Keys(j.options)) {
			s.complain("sasl.jaas.config", "option %s has no equivalent: credentials come from where the AWS SDK looks", option)
		}
	default:
		cfg.SASL.Username, cfg.Secrets.Password = j.options["username"], j.options["password"]
		if cfg.SASL.Username == "" || cfg.Secrets.Password == "" {
			s.complain("sasl.jaas.config", "needs username and password")
		}
	}
}

// oauth reads a token file or client credentials; Kafka 4.1 has settings for the latter, earlier
// versions have options of the login module.
func (s *settings) oauth(cfg *connect.Config, j jaas) {
	for option, value := range j.options {
		if name, ok := strings.CutPrefix(option, "extension_"); ok {
			if cfg.SASL.Extensions == nil {
				cfg.SASL.Extensions = make(map[string]string)
			}
			cfg.SASL.Extensions[name] = value
		}
	}
	endpoint := s.get("sasl.oauthbearer.token.endpoint.url", "")
	u, err := url.Parse(endpoint)
	switch {
	case endpoint == "" || err != nil:
		s.complain("sasl.oauthbearer.token.endpoint.url", "must be the URL of the token endpoint, or file: and the path of a token")
		return
	case u.Scheme == "file":
		cfg.SASL.TokenFile = u.Path
	default:
		s.clientCredentials(cfg, j, endpoint)
	}
	var bad strict.Problems
	cfg.SASL.ValidateToken(&bad, strict.At(s.prefix))
	for _, p := range bad.All {
		s.complain("sasl.oauthbearer.token.endpoint.url", "%s", p.Message)
	}
}

// clientCredentials reads what a token endpoint is asked with.
func (s *settings) clientCredentials(cfg *connect.Config, j jaas, endpoint string) {
	cfg.SASL.TokenURL = endpoint
	cfg.SASL.ClientID = s.get("sasl.oauthbearer.client.credentials.client.id", j.options["clientId"])
	cfg.Secrets.ClientSecret = s.get("sasl.oauthbearer.client.credentials.client.secret", j.options["clientSecret"])
	if scope := s.get("sasl.oauthbearer.scope", j.options["scope"]); scope != "" {
		cfg.SASL.Scopes = strings.Fields(scope)
	}
	if cfg.SASL.ClientID == "" || cfg.Secrets.ClientSecret == "" {
		s.complain("sasl.jaas.config", "needs clientId and clientSecret")
	}
}
