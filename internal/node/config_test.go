package node_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/router/ownership"
)

const validConfig = `version: 1
region: us
data_dir: /var/lib/geogate
regions:
  us: {id: 1, kafka: {embedded: {listen: 127.0.0.1:19092}}}
  eu: {id: 2, kafka: {seeds: [127.0.0.1:29092]}}
  ap: {id: 3}
links: [{from: us, to: eu}, {name: back, from: eu, to: us, include: [a], exclude: [b]}]
`

// load decodes, completes and validates; errors have their places.
func load(src string) (node.Config, error) {
	c := node.Defaults()
	if err := strict.Decode("c", []byte(src), &c); err != nil {
		return c, err
	}
	doc, err := strict.Parse("c", []byte(src))
	if err != nil {
		return c, err
	}
	c = c.Complete()
	return c, doc.Locate(c.Validate())
}

func TestConfig(t *testing.T) {
	c, err := load(validConfig)
	if err != nil {
		t.Fatal(err)
	}
	if c.Instance != "us-0" || c.HTTP.MaxBody != 32*strict.MiB || c.Idempotency.Window != 24*time.Hour || c.Drain != 30*time.Second || c.NATS.Mode != "solo" {
		t.Errorf("defaults are missing: %+v", c)
	}
	if l := c.Links[0]; l.Name != "us-eu" || strings.Join(l.Include, " ") != "*" {
		t.Errorf("link is %+v", l)
	}
	if out := c.Outgoing(); len(out) != 1 || out[0].To != "eu" {
		t.Errorf("outgoing links are %+v", out)
	}
	top, err := c.Topology()
	if err != nil || len(top.Regions()) != 3 || top.Name(2) != "eu" {
		t.Errorf("topology is %v, %v", top, err)
	}
	if k := c.Own().Kafka.Embedded; k == nil || k.Listen != "127.0.0.1:19092" {
		t.Errorf("own kafka is %+v", c.Own().Kafka)
	}
	policy, err := c.Ownership()
	if err != nil || policy.Domain("x").Name != ownership.DefaultDomain {
		t.Errorf("without a policy: %v", err)
	}
}

func TestCompleteDoesNotChangeItsReceiver(t *testing.T) {
	c := node.Config{Region: "us", Links: []node.LinkConfig{{From: "us", To: "eu"}}}
	if d := c.Complete(); d.Links[0].Name != "us-eu" || c.Links[0].Name != "" || c.Instance != "" {
		t.Errorf("receiver became %+v", c)
	}
}

func TestConfigErrors(t *testing.T) {
	replace := func(old, new string) string {
		if !strings.Contains(validConfig, old) {
			t.Fatalf("no %q in the configuration", old)
		}
		return strings.Replace(validConfig, old, new, 1)
	}
	for name, tt := range map[string]struct{ src, want string }{
		"version":           {replace("version: 1", "version: 2"), `c:1:1: version: must be 1, the version of this file's form`},
		"unknown region":    {replace("region: us", "region: use"), "c:2:1: region: unknown region \"use\"; did you mean \"us\"?"},
		"no region":         {replace("region: us\n", ""), `c:1:1: region: must name the region that this instance belongs to`},
		"no data_dir":       {replace("data_dir: /var/lib/geogate", "data_dir: ''"), `c:3:1: data_dir: must name a directory`},
		"instance":          {validConfig + "instance: a b\n", `c:9:1: instance: "a b" is not an instance name, want 1 to 100 letters, digits, dots, hyphens and underscores`},
		"no kafka":          {replace("{embedded: {listen: 127.0.0.1:19092}}", "{}"), `c:5:15: regions.us.kafka: the own region needs seeds or embedded`},
		"both kafkas":       {replace("{listen: 127.0.0.1:19092}}", "{listen: 127.0.0.1:19092}, seeds: [a:1]}"), `c:5:15: regions.us.kafka: give either seeds or embedded, not both`},
		"foreign embedded":  {replace("ap: {id: 3}", "ap: {id: 3, kafka: {embedded: {listen: 127.0.0.1:1}}}"), `c:7:23: regions.ap.kafka.embedded: only the own region's Kafka can be embedded; give seeds for another region's`},
		"open embedded":     {replace("listen: 127.0.0.1:19092", "listen: 0.0.0.0:19092"), `c:5:34: regions.us.kafka.embedded.listen: 0.0.0.0:19092 is not a loopback address, and the embedded Kafka has no authentication`},
		"no target":         {replace("{id: 2, kafka: {seeds: [127.0.0.1:29092]}}", "{id: 2}"), `c:6:3: regions.eu.kafka: needs seeds: link us-eu writes there`},
		"bad seed":          {replace("[127.0.0.1:29092]", "[kafka]"), `c:6:31: regions.eu.kafka.seeds[0]: "kafka" is not host:port`},
		"mechanism":         {replace("[127.0.0.1:29092]", "[a:1], sasl: {mechanism: scram-sha-521}"), `c:6:44: regions.eu.kafka.sasl.mechanism: unknown mechanism "scram-sha-521"; did you mean "scram-sha-512"?`},
		"open password":     {replace("[127.0.0.1:29092]", "[a:1], sasl: {mechanism: plain, password: hunter2}"), `c:6:62: regions.eu.kafka.sasl.password: secrets are given in files only; use password_file`},
		"unchecked TLS":     {replace("[127.0.0.1:29092]", "[a:1], tls: {insecure_skip_verify: true}"), `c:6:43: regions.eu.kafka.tls.insecure_skip_verify: certificates are always checked: without that anybody between can read and write; give ca_file, and server_name if the name differs`},
		"TLS without seeds": {replace("ap: {id: 3}", "ap: {id: 3, kafka: {tls: {}}}"), `c:7:23: regions.ap.kafka.tls: needs seeds: it is for brokers outside of this process`},
		"mapped to a host":  {replace("[127.0.0.1:29092]", "[a:1], address_map: {'b:9092': tunnel}"), `c:6:51: regions.eu.kafka.address_map."b:9092": "tunnel" is not host:port`},
		"same id":           {replace("ap: {id: 3}", "ap: {id: 2}"), `c:6:8: regions.eu.id: 2 is already the id of ap`},
		"id 16":             {replace("ap: {id: 3}", "ap: {id: 16}"), `c:7:8: regions.ap.id: must be within 1 and 15`},
		"region name":       {replace("ap: {id: 3}", "A.P: {id: 3}"), `c:7:3: regions."A.P": "A.P" is not a region name, want 1 to 31 of a-z, 0-9 and -, first a letter`},
		"link to itself":    {replace("to: eu}", "to: us}"), `c:8:20: links[0].to: a link leads to another region`},
		"link to nowhere":   {replace("to: eu}", "to: ue}"), `c:8:20: links[0].to: unknown region "ue"; did you mean "eu"?`},
		"two links":         {replace("links: [", "links: [{name: x, from: us, to: eu}, "), `c:8:38: links[1]: a link from us to eu exists already`},
		"two names":         {replace("name: back", "name: us-eu"), `c:8:30: links[1].name: a link us-eu exists already`},
		"bad pattern":       {replace("include: [a]", "include: [a, '/(/']"), "c:8:73: links[1].include[1]: router: malformed topic pattern \"/(/\": error parsing regexp: missing closing ): `^(?:()$`"},
		"paired":            {validConfig + "nats: {mode: paired, embedded: {}}\n", `c:9:8: nats.mode: mode paired, two sites without a witness, comes with the failover commands, since an operator has to attest every take-over; until then use quorum with a witness, or solo`},
		"quorum alone":      {validConfig + "nats: {mode: quorum}\n", `c:9:1: nats: mode quorum needs embedded, one of three servers, or the urls of a cluster`},
		"quorum, no route":  {validConfig + "nats: {mode: quorum, embedded: {cluster: 127.0.0.1:1, secret_file: s}}\n", `c:9:22: nats.embedded.routes: needs the other 2 servers of the cluster, two regions and a witness are 3`},
		"quorum, open":      {validConfig + "nats: {mode: quorum, embedded: {cluster: 0.0.0.0:1, routes: [nats-route://a:1, http://b:1], secret_file: s}}\n", "c:9:33: nats.embedded.cluster: 0.0.0.0:1 is not a loopback address, and an embedded cluster is for one host; use urls for a cluster over several machines\nc:9:80: nats.embedded.routes[1]: \"http://b:1\" is not a URL like nats-route://host:6222"},
		"quorum, no secret": {validConfig + "nats: {mode: quorum, embedded: {cluster: 127.0.0.1:1, routes: [nats-route://a:1, nats-route://b:1]}}\n", "c:9:22: nats.embedded.secret_file: needs a secret that all three servers share, or any process on this machine could join them: make one with (umask 077; openssl rand -hex 32 > nats.secret)"},
		"password":          {validConfig + "nats: {mode: solo, urls: [nats://a:1, nats://us:hunter2@b:1]}\n", "c:9:39: nats.urls[1]: a URL must not have a name or password in it, since the configuration is shown; give host and port alone"},
		"solo cluster":      {validConfig + "nats: {mode: solo, embedded: {cluster: 127.0.0.1:1}}\n", `c:9:20: nats.embedded: cluster, routes, advertise and secret_file are for mode quorum; in mode solo there is one server, which only this process reaches`},
		"two registers":     {validConfig + "nats: {urls: [nats://a:1], embedded: {}}\n", `c:9:1: nats: give either embedded or urls, not both`},
		"short lease":       {validConfig + "nats: {lease: {duration: 15s}}\n", `c:9:8: nats.lease: lease: duration - margin - renew - timeout is 8s, at least 10s are needed to survive an election in the register`},
		"residency":         {validConfig + "policies: {residency: r.yaml}\n", `c:9:12: policies.residency: a residency policy needs idempotency.secret_file, the same in all regions`},
		"open http":         {validConfig + "http: {listen: ':80'}\n", `c:9:8: http.listen: :80 is not a loopback address, and there is no authentication yet`},
		"open management":   {validConfig + "management: {listen: 'example.org:80'}\n", `c:9:14: management.listen: example.org:80 is not a loopback address, and there is no authentication yet`},
		"no port":           {validConfig + "http: {listen: 127.0.0.1}\n", `c:9:8: http.listen: "127.0.0.1" is not host:port`},
		"host with port":    {validConfig + "http: {allowed_hosts: ['a.example:80']}\n", `c:9:24: http.allowed_hosts[0]: "a.example:80" is not a host name or address, without scheme and port`},
		"host as URL":       {validConfig + "management: {allowed_hosts: [a, 'http://a']}\n", `c:9:33: management.allowed_hosts[1]: "http://a" is not a host name or address, without scheme and port`},
		"taken port":        {validConfig + "http: {listen: 127.0.0.1:18091}\n", `c:1:1: management.listen: 127.0.0.1:18091 is taken by http.listen`},
		"record above body": {validConfig + "http: {max_body: 1MiB, max_record: 2MiB}\n", `c:9:24: http.max_record: 2MiB is more than max_body, 1MiB, lets in`},
		"body above all":    {validConfig + "http: {max_body: 1GiB}\n", `c:9:8: http.max_body: 1GiB is more than one address may have in memory, half of max_inflight, 256MiB`},
		"no body":           {validConfig + "http: {max_inflight: 0}\n", "c:9:8: http.max_inflight: must be at least 1KiB\nc:9:1: http.max_body: 32MiB is more than one address may have in memory, half of max_inflight, 0"},
		"long keys":         {validConfig + "limits: {key: 64KiB}\n", `c:9:10: limits.key: must be within 1KiB and 32KiB, the longest key that can be stored`},
		"few headers":       {validConfig + "limits: {record_headers: 10, header_bytes: 1KiB}\n", "c:9:10: limits.record_headers: must be within 100 and 1000000\nc:9:30: limits.header_bytes: must be within 16KiB and 64MiB"},
		"small batches":     {validConfig + "limits: {batch_unfolded: 2MiB}\n", `c:9:10: limits.batch_unfolded: must be at least 32 times http.max_record, 32MiB`},
		"no batches":        {validConfig + "limits: {batch_unfolded: 1KiB}\n", `c:9:10: limits.batch_unfolded: must be within 1MiB and 1GiB`},
		"no readers":        {validConfig + "http: {max_readers: 0}\n", `c:9:8: http.max_readers: must be at least 1`},
		"no connections":    {validConfig + "http: {max_connections: -1}\nmanagement: {max_connections: 0}\n", "c:9:8: http.max_connections: must be at least 1\nc:10:14: management.max_connections: must be at least 1"},
		"window":            {validConfig + "idempotency: {window: 0s}\n", `c:9:15: idempotency.window: must be within 1s and 2160h`},
		"plain secret":      {validConfig + "idempotency: {secret: hunter2}\n", `c:9:15: idempotency.secret: secrets are given in files only; use secret_file`},
		"level":             {validConfig + "log: {level: wran}\n", `c:9:7: log.level: unknown level "wran"; did you mean "warn"?`},
		"drain":             {validConfig + "drain: 0s\n", `c:9:1: drain: must be more than 0s and at most 1h`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(tt.src)
			if err == nil {
				t.Fatal("accepted")
			}
			// Positions order the errors of a file; the table lists them so too.
			want := strings.Split(tt.want, "\n")
			for _, line := range want {
				if !strings.Contains(err.Error(), line) {
					t.Errorf("got\n%v\nwant\n%s", err, line)
				}
			}
			if got := strings.Count(err.Error(), "\n") + 1; got != len(want) {
				t.Errorf("got %d errors, want %d:\n%v", got, len(want), err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("a secret is in the message: %v", err)
			}
		})
	}
}

func TestLoopbackForms(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "127.1.2.3:80", "localhost:80", "'[::1]:80'"} {
		if _, err := load(validConfig + "http: {listen: " + listen + "}\n"); err != nil {
			t.Errorf("%s: %v", listen, err)
		}
	}
	for _, listen := range []string{"0.0.0.0:1", "'[::]:1'", "10.0.0.1:1", "127.0.0.1.example.org:1", "127.0.0.1:65536", "127.0.0.1:http"} {
		if _, err := load(validConfig + "http: {listen: " + listen + "}\n"); err == nil {
			t.Errorf("%s is accepted", listen)
		}
	}
}

func TestSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	c := node.Config{Idempotency: node.IdempotencyConfig{SecretFile: path}}
	if _, err := c.Secret(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
	for content, want := range map[string]string{"0123456789abcdef\n": "0123456789abcdef", "0123456789 abcdef\r\n": "0123456789 abcdef", "short\n": "", "": ""} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := c.Secret()
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", content, got, err)
		}
	}
	if got, err := (node.Config{}).Secret(); got != nil || err != nil {
		t.Errorf("unset: %q, %v", got, err)
	}
}
