package connect

import (
	"crypto/tls"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/geogate/geogate/internal/loopback"
	"github.com/geogate/geogate/internal/strict"
)

// Config says how a cluster is reached.
type Config struct {
	// Seeds are host:port addresses of brokers.
	Seeds []string
	// TLS is nil for connections in the clear.
	TLS *TLS
	// SASL is nil for connections without it.
	SASL *SASL
	// AddressMap gives other host:port addresses for those that brokers advertise, or that
	// are in Seeds.
	AddressMap map[string]string
	// Stores replace the files of TLS, which is not nil if there are any.
	Stores Stores
	// Secrets replace the files of SASL: settings of Java's clients have the secrets themselves.
	Secrets Secrets
}

// Secrets are passwords given as values instead of as names of files.
type Secrets struct{ Password, ClientSecret string }

// String keeps secrets out of what is printed.
func (Secrets) String() string { return "(not shown)" }

// GoString keeps secrets out of what is printed with %#v.
func (Secrets) GoString() string { return "(not shown)" }

// TLS says which certificates of brokers are accepted, and which one the client presents.
type TLS struct {
	// CAFile has the certificates, in PEM, that brokers' certificates must lead to. Empty:
	// those of the system.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile are the own certificate, with the intermediate ones, and its
	// private key, in PEM. Empty: there is none.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ServerName is the name that all brokers' certificates must have. Empty: each broker's
	// certificate must have the host that the broker advertises.
	ServerName string `yaml:"server_name"`
	// MinVersion is 1.2, the default, or 1.3.
	MinVersion string `yaml:"min_version"`
}

// Later maps members that do not exist to what to use instead: certificates are given in
// files, and are always checked.
func (TLS) Later() map[string]string {
	const files = "certificates and keys are given in files only; use ca_file, cert_file and key_file"
	const check = "certificates are always checked: without that anybody between can read and write; give ca_file, and server_name if the name differs"
	return map[string]string{
		"ca": files, "cert": files, "key": files, "certificate": files,
		"insecure_skip_verify": check, "insecure": check, "skip_verify": check,
		"key_password": "an encrypted key is not read; decrypt it with openssl pkey -in KEY -out PLAIN, and let nobody else read the result",
	}
}

// The SASL mechanisms, as the configuration names them.
const (
	Plain       = "plain"
	Scram256    = "scram-sha-256"
	Scram512    = "scram-sha-512"
	OAuthBearer = "oauthbearer"
	AWSMSKIAM   = "aws-msk-iam"
)

// Mechanisms are the names of all mechanisms.
func Mechanisms() []string { return []string{Plain, Scram256, Scram512, OAuthBearer, AWSMSKIAM} }

// SASL says how the client authenticates to the brokers.
type SASL struct {
	// Mechanism is one of Mechanisms.
	Mechanism string `yaml:"mechanism"`

	// Username and PasswordFile are for plain and scram-sha-….
	Username     string `yaml:"username"`
	PasswordFile string `yaml:"password_file"`

	// TokenFile has a token, for oauthbearer, which another program renews.
	TokenFile string `yaml:"token_file"`
	// TokenURL gives tokens for the client's id and secret, for oauthbearer.
	TokenURL         string `yaml:"token_url"`
	ClientID         string `yaml:"client_id"`
	ClientSecretFile string `yaml:"client_secret_file"`
	// Scopes and Audience are sent to TokenURL.
	Scopes   []string `yaml:"scopes"`
	Audience string   `yaml:"audience"`
	// TokenCAFile has the certificates that the one of TokenURL must lead to. Empty: those of
	// the system.
	TokenCAFile string `yaml:"token_ca_file"`
	// Extensions are sent to the brokers with the token.
	Extensions map[string]string `yaml:"extensions"`

	// CredentialsFile is a file of AWS credentials, for aws-msk-iam, and Profile the profile in
	// it (default). Empty: where the AWS SDK looks.
	CredentialsFile string `yaml:"credentials_file"`
	Profile         string `yaml:"profile"`
}

// Later maps members that do not exist to what to use instead: secrets are given in files.
func (SASL) Later() map[string]string {
	const files = "secrets are given in files only; use "
	return map[string]string{
		"password": files + "password_file", "token": files + "token_file", "client_secret": files + "client_secret_file",
		"access_key": files + "credentials_file", "secret_key": files + "credentials_file", "session_token": files + "credentials_file",
	}
}

// Files are the members of c that name files, with their paths below the cluster's part of
// the configuration; the empty ones too.
func (c *Config) Files() []File {
	var out []File
	if t := c.TLS; t != nil {
		out = append(out, File{strict.At("tls", "ca_file"), &t.CAFile}, File{strict.At("tls", "cert_file"), &t.CertFile}, File{strict.At("tls", "key_file"), &t.KeyFile})
	}
	if s := c.Stores.Trust; s != nil {
		out = append(out, File{strict.At("truststore"), &s.File})
	}
	if s := c.Stores.Key; s != nil {
		out = append(out, File{strict.At("keystore"), &s.File})
	}
	if s := c.SASL; s != nil {
		out = append(out, File{strict.At("sasl", "password_file"), &s.PasswordFile}, File{strict.At("sasl", "token_file"), &s.TokenFile},
			File{strict.At("sasl", "client_secret_file"), &s.ClientSecretFile}, File{strict.At("sasl", "token_ca_file"), &s.TokenCAFile},
			File{strict.At("sasl", "credentials_file"), &s.CredentialsFile})
	}
	return out
}

// File is a member that names a file.
type File struct {
	At   strict.Path
	Name *string
}

// Validate adds what is wrong with c as far as it can be seen without its files; at is the
// path of the cluster's part of the configuration.
func (c *Config) Validate(bad *strict.Problems, at strict.Path) {
	for i, seed := range c.Seeds {
		if !isAddress(seed) {
			bad.Add(at.And("seeds", i), "%q is not host:port", seed)
		}
	}
	for _, from := range sortedKeys(c.AddressMap) {
		to := c.AddressMap[from]
		switch {
		case !isAddress(from):
			bad.Add(at.And("address_map", from), "%q is not host:port; write it as the broker advertises it", from)
		case !isAddress(to):
			bad.Add(at.And("address_map", from), "%q is not host:port", to)
		}
	}
	if c.TLS != nil {
		c.TLS.validate(bad, at.And("tls"))
	}
	if c.SASL != nil {
		c.SASL.validate(bad, at.And("sasl"))
	}
}

// versions are the least versions of TLS that can be asked for.
func versions() map[string]uint16 {
	return map[string]uint16{"": tls.VersionTLS12, "1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}
}

func (t *TLS) validate(bad *strict.Problems, at strict.Path) {
	switch {
	case t.CertFile != "" && t.KeyFile == "":
		bad.Add(at.And("cert_file"), "needs key_file, the certificate's private key")
	case t.CertFile == "" && t.KeyFile != "":
		bad.Add(at.And("key_file"), "needs cert_file, the certificate of that key")
	}
	if _, ok := versions()[t.MinVersion]; !ok {
		bad.Unknown(at.And("min_version"), "version", t.MinVersion, "1.2", "1.3")
	}
	if net.ParseIP(t.ServerName) == nil && strings.ContainsAny(t.ServerName, ":/ ") {
		bad.Add(at.And("server_name"), "%q is not a host name, without scheme and port", t.ServerName)
	}
}

// member is a member of SASL that some mechanisms have.
type member struct {
	name  string
	given bool
	of    []string // mechanisms
}

func (s *SASL) members() []member {
	login := []string{Plain, Scram256, Scram512}
	return []member{
		{"username", s.Username != "", login},
		{"password_file", s.PasswordFile != "", login},
		{"token_file", s.TokenFile != "", []string{OAuthBearer}},
		{"token_url", s.TokenURL != "", []string{OAuthBearer}},
		{"client_id", s.ClientID != "", []string{OAuthBearer}},
		{"client_secret_file", s.ClientSecretFile != "", []string{OAuthBearer}},
		{"scopes", len(s.Scopes) > 0, []string{OAuthBearer}},
		{"audience", s.Audience != "", []string{OAuthBearer}},
		{"token_ca_file", s.TokenCAFile != "", []string{OAuthBearer}},
		{"extensions", len(s.Extensions) > 0, []string{OAuthBearer}},
		{"credentials_file", s.CredentialsFile != "", []string{AWSMSKIAM}},
		{"profile", s.Profile != "", []string{AWSMSKIAM}},
	}
}

func (s *SASL) validate(bad *strict.Problems, at strict.Path) {
	if !slices.Contains(Mechanisms(), s.Mechanism) {
		bad.Unknown(at.And("mechanism"), "mechanism", s.Mechanism, Mechanisms()...)
		return
	}
	for _, m := range s.members() {
		if m.given && !slices.Contains(m.of, s.Mechanism) {
			bad.Add(at.And(m.name), "is for %s, but mechanism is %s", strings.Join(m.of, ", "), s.Mechanism)
		}
	}
	switch s.Mechanism {
	case Plain, Scram256, Scram512:
		if s.Username == "" {
			bad.Add(at, "mechanism %s needs username", s.Mechanism)
		}
		if s.PasswordFile == "" {
			bad.Add(at, "mechanism %s needs password_file, a file with the password", s.Mechanism)
		}
	case OAuthBearer:
		s.validateOAuth(bad, at)
	case AWSMSKIAM:
		if s.Profile != "" && s.CredentialsFile == "" {
			bad.Add(at.And("profile"), "is for credentials_file; without one, set $AWS_PROFILE")
		}
	}
}

func (s *SASL) validateOAuth(bad *strict.Problems, at strict.Path) {
	switch {
	case s.TokenFile == "" && s.TokenURL == "":
		bad.Add(at, "mechanism %s needs token_file, or token_url with client_id and client_secret_file", s.Mechanism)
	case s.TokenFile != "" && s.TokenURL != "":
		bad.Add(at, "give either token_file or token_url, not both")
	case s.TokenFile != "":
		for _, m := range s.members() {
			if m.given && slices.Contains([]string{"client_id", "client_secret_file", "scopes", "audience", "token_ca_file"}, m.name) {
				bad.Add(at.And(m.name), "is for token_url, but token_file is given")
			}
		}
	default:
		checkTokenURL(bad, at.And("token_url"), s.TokenURL)
		if s.ClientID == "" {
			bad.Add(at, "token_url needs client_id")
		}
		if s.ClientSecretFile == "" {
			bad.Add(at, "token_url needs client_secret_file, a file with the client's secret")
		}
	}
	s.validateExtensions(bad, at)
}

func (s *SASL) validateExtensions(bad *strict.Problems, at strict.Path) {
	for _, name := range sortedKeys(s.Extensions) {
		if name == "auth" || name == "" || strings.ContainsFunc(name, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsLetter(r) }) {
			bad.Add(at.And("extensions", name), "%q cannot be the name of an extension: use ASCII letters, and not \"auth\"", name)
		}
		if strings.ContainsFunc(s.Extensions[name], func(r rune) bool {
			return r > unicode.MaxASCII || r != '\t' && r != '\n' && r != '\r' && !unicode.IsPrint(r)
		}) {
			bad.Add(at.And("extensions", name), "may have printable ASCII characters, tabs and line ends only")
		}
	}
}

// ValidateToken adds what is wrong with TokenURL, if there is one, and with Extensions.
func (s *SASL) ValidateToken(bad *strict.Problems, at strict.Path) {
	if s.TokenURL != "" {
		checkTokenURL(bad, at, s.TokenURL)
	}
	s.validateExtensions(bad, at)
}

// checkTokenURL refuses what would send the client's secret in the clear to another machine,
// or show it.
func checkTokenURL(bad *strict.Problems, at strict.Path, text string) {
	u, err := url.Parse(text)
	switch {
	case strings.Contains(text, "@"):
		bad.Add(at, "a URL must not have a name or password in it, since the configuration is shown; use client_id and client_secret_file")
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		bad.Add(at, "%q is not a URL like https://id.example/oauth2/token", text)
	case u.Scheme == "http" && !loopback.IsHost(u.Hostname()):
		bad.Add(at, "must begin with https, since the client's secret is sent there; http is accepted for this machine only")
	}
}

func isAddress(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsAny(host, "/@ ") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

func sortedKeys(m map[string]string) []string {
	return slices.Sorted(maps.Keys(m))
}
