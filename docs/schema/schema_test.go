package schema_test

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/geogate/geogate/docs/schema"
	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router/ownership"
)

const validConfig = `
version: 1
region: us
data_dir: /var/lib/geogate
regions:
  us: {id: 1, kafka: {embedded: {listen: 127.0.0.1:19092}}}
  eu: {id: 2, kafka: {seeds: [127.0.0.1:29092]}}
links: [{from: us, to: eu}]
`

func compile(t *testing.T, name string, src []byte) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(src))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance reads YAML as the validator wants it.
func instance(t *testing.T, src string) any {
	t.Helper()
	doc, err := strict.Parse("example", []byte(src))
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	b, err := json.Marshal(doc.Map())
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestSchemasAgreeWithStructs compares the keys and the types of each schema
// with the fields that the program decodes, both ways.
func TestSchemasAgreeWithStructs(t *testing.T) {
	for _, tt := range []struct {
		name string
		src  []byte
		into any
	}{{"config", schema.Config(), node.Config{}}, {"ownership", schema.Ownership(), ownership.PolicyFile{}}, {"residency", schema.Residency(), residency.File{}}} {
		t.Run(tt.name, func(t *testing.T) {
			var root map[string]any
			if err := json.Unmarshal(tt.src, &root); err != nil {
				t.Fatal(err)
			}
			agree(t, root, root, reflect.TypeOf(tt.into), tt.name)
		})
	}
}

func agree(t *testing.T, root, node map[string]any, typ reflect.Type, at string) {
	node = deref(t, root, node)
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	text := reflect.PointerTo(typ).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	switch {
	case typ == reflect.TypeFor[time.Duration]():
		accepts(t, node, at, "string")
	case text:
		if node["oneOf"] == nil {
			t.Errorf("%s: a size has no oneOf in the schema", at)
		}
	case typ.Kind() == reflect.Struct:
		agreeStruct(t, root, node, typ, at)
	case typ.Kind() == reflect.Map:
		accepts(t, node, at, "object")
		agree(t, root, node["additionalProperties"].(map[string]any), typ.Elem(), at+".*")
	case typ.Kind() == reflect.Slice:
		accepts(t, node, at, "array")
		agree(t, root, node["items"].(map[string]any), typ.Elem(), at+"[]")
	case typ.Kind() == reflect.String:
		accepts(t, node, at, "string")
	case typ.Kind() == reflect.Bool:
		accepts(t, node, at, "boolean")
	default:
		accepts(t, node, at, "integer")
	}
}

func agreeStruct(t *testing.T, root, node map[string]any, typ reflect.Type, at string) {
	accepts(t, node, at, "object")
	if node["additionalProperties"] != false {
		t.Errorf("%s: the schema lets unknown keys pass", at)
	}
	properties, _ := node["properties"].(map[string]any)
	var fields []string
	for i := range typ.NumField() {
		name := typ.Field(i).Tag.Get("yaml")
		fields = append(fields, name)
		property, ok := properties[name].(map[string]any)
		if !ok {
			t.Errorf("%s.%s: not in the schema", at, name)
			continue
		}
		agree(t, root, property, typ.Field(i).Type, at+"."+name)
	}
	for name := range properties {
		if !slices.Contains(fields, name) {
			t.Errorf("%s.%s: in the schema only", at, name)
		}
	}
}

func deref(t *testing.T, root, node map[string]any) map[string]any {
	ref, ok := node["$ref"].(string)
	if !ok {
		return node
	}
	definition, ok := root["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	if !ok {
		t.Fatalf("%s leads nowhere", ref)
	}
	return definition
}

// accepts checks the JSON type of a schema, which may be given by its constants.
func accepts(t *testing.T, node map[string]any, at, want string) {
	t.Helper()
	var values []any
	switch {
	case node["type"] != nil:
		if node["type"] != want {
			t.Errorf("%s: schema says %v, the program reads %s", at, node["type"], want)
		}
		return
	case node["enum"] != nil:
		values = node["enum"].([]any)
	case node["const"] != nil:
		values = []any{node["const"]}
	default:
		t.Errorf("%s: the schema has no type", at)
	}
	for _, v := range values {
		have := map[reflect.Kind]string{reflect.String: "string", reflect.Float64: "integer", reflect.Bool: "boolean"}[reflect.TypeOf(v).Kind()]
		if have != want {
			t.Errorf("%s: schema says %v, the program reads %s", at, v, want)
		}
	}
}

// TestDefaults checks that the schema tells the defaults that the program has.
func TestDefaults(t *testing.T) {
	var root map[string]any
	if err := json.Unmarshal(schema.Config(), &root); err != nil {
		t.Fatal(err)
	}
	out, err := strict.Marshal(node.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	doc, err := strict.Parse("defaults", out)
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	var walk func(node map[string]any, have any, at string)
	walk = func(node map[string]any, have any, at string) {
		if want, ok := node["default"]; ok {
			checked++
			if fmt.Sprint(want) != fmt.Sprint(have) {
				t.Errorf("%s: schema says %v, the program %v", at, want, have)
			}
		}
		properties, _ := node["properties"].(map[string]any)
		for name, property := range properties {
			value, _ := have.(map[string]any)
			walk(property.(map[string]any), value[name], at+"."+name)
		}
	}
	walk(root, doc.Map(), "config")
	if checked < 10 {
		t.Errorf("only %d defaults compared", checked)
	}
}

// TestSchemaAndProgramAgree gives both the same files.
func TestSchemaAndProgramAgree(t *testing.T) {
	config, ownership := compile(t, "config", schema.Config()), compile(t, "ownership", schema.Ownership())
	residency := compile(t, "residency", schema.Residency())
	const head = "version: 1\nkind: OwnershipPolicy\n"
	const border = "version: 1\nkind: ResidencyPolicy\nname: a\nrevision: 1\ndefault: deny\n"
	for name, tt := range map[string]struct {
		s    *jsonschema.Schema
		src  string
		want bool
	}{
		"config":            {config, validConfig, true},
		"everything":        {config, validConfig + "instance: us-7\nnats: {mode: solo}\nhttp: {listen: \"127.0.0.1:1\", allowed_hosts: [geogate.example, \"::1\", 192.0.2.1], max_connections: 100, max_readers: 1, max_body: 8MiB, max_record: 1048576, max_inflight: 1GiB}\nmanagement: {listen: \"localhost:0\", pprof: false}\nidempotency: {window: 1h30m, secret_file: a}\npolicies: {residency: \"\", ownership: o.yaml}\nlog: {level: debug}\ndrain: 5s\n", true},
		"unknown key":       {config, validConfig + "zone: a\n", false},
		"no region":         {config, strings.Replace(validConfig, "region: us\n", "", 1), false},
		"version 2":         {config, strings.Replace(validConfig, "version: 1", "version: 2", 1), false},
		"id 16":             {config, strings.Replace(validConfig, "id: 2", "id: 16", 1), false},
		"region name":       {config, strings.Replace(validConfig, "  eu:", "  EU:", 1), false},
		"both kafkas":       {config, strings.Replace(validConfig, "seeds: [127.0.0.1:29092]", "seeds: [\"a:1\"], embedded: {listen: \"127.0.0.1:1\"}", 1), false},
		"tls":               {config, reached("tls: {}"), true},
		"mutual TLS":        {config, reached("tls: {ca_file: ca.pem, cert_file: c.pem, key_file: k.pem, server_name: kafka.example, min_version: \"1.3\"}, address_map: {\"broker-1.internal:9093\": \"tunnel.example:19093\"}"), true},
		"certificate alone": {config, reached("tls: {cert_file: c.pem}"), false},
		"key alone":         {config, reached("tls: {key_file: c.pem}"), false},
		"TLS 1.1":           {config, reached("tls: {min_version: \"1.1\"}"), false},
		"unchecked TLS":     {config, reached("tls: {insecure_skip_verify: true}"), false},
		"server name":       {config, reached("tls: {server_name: \"http://a\"}"), false},
		"mapped host":       {config, reached("address_map: {broker-1: \"tunnel.example:19093\"}"), false},
		"mapped to a host":  {config, reached("address_map: {\"broker-1:9092\": tunnel.example}"), false},
		"plain":             {config, reached("sasl: {mechanism: plain, username: a, password_file: p}"), true},
		"scram":             {config, reached("sasl: {mechanism: scram-sha-512, username: a, password_file: p}"), true},
		"gssapi":            {config, reached("sasl: {mechanism: gssapi, username: a, password_file: p}"), false},
		"no mechanism":      {config, reached("sasl: {username: a, password_file: p}"), false},
		"password":          {config, reached("sasl: {mechanism: plain, username: a, password: p}"), false},
		"no user":           {config, reached("sasl: {mechanism: plain, password_file: p}"), false},
		"no password":       {config, reached("sasl: {mechanism: scram-sha-256, username: a}"), false},
		"token file":        {config, reached("sasl: {mechanism: oauthbearer, token_file: t, extensions: {logicalCluster: lkc}}"), true},
		"token endpoint":    {config, reached("sasl: {mechanism: oauthbearer, token_url: \"https://id.example/token\", client_id: a, client_secret_file: s, scopes: [kafka], audience: b, token_ca_file: ca.pem}"), true},
		"both tokens":       {config, reached("sasl: {mechanism: oauthbearer, token_file: t, token_url: \"https://id.example/token\", client_id: a, client_secret_file: s}"), false},
		"no token":          {config, reached("sasl: {mechanism: oauthbearer}"), false},
		"no client secret":  {config, reached("sasl: {mechanism: oauthbearer, token_url: \"https://id.example/token\", client_id: a}"), false},
		"token scheme":      {config, reached("sasl: {mechanism: oauthbearer, token_url: \"ftp://id.example/token\", client_id: a, client_secret_file: s}"), false},
		"user of a token":   {config, reached("sasl: {mechanism: oauthbearer, token_file: t, username: a}"), false},
		"extension auth":    {config, reached("sasl: {mechanism: oauthbearer, token_file: t, extensions: {auth: x}}"), false},
		"iam":               {config, reached("sasl: {mechanism: aws-msk-iam}"), true},
		"iam file":          {config, reached("sasl: {mechanism: aws-msk-iam, credentials_file: c, profile: p}"), true},
		"iam profile":       {config, reached("sasl: {mechanism: aws-msk-iam, profile: p}"), false},
		"iam user":          {config, reached("sasl: {mechanism: aws-msk-iam, username: a}"), false},
		"embedded tls":      {config, strings.Replace(validConfig, "seeds: [127.0.0.1:29092]", "tls: {}", 1), false},
		"seed without port": {config, strings.Replace(validConfig, "[127.0.0.1:29092]", "[kafka]", 1), false},
		"quorum alone":      {config, validConfig + "nats: {mode: quorum}\n", false},
		"quorum":            {config, validConfig + "nats: {mode: quorum, embedded: {name: n, cluster: \"127.0.0.1:1\", routes: [\"nats-route://127.0.0.1:2\", \"nats-route://127.0.0.1:3\"], advertise: \"127.0.0.1:4\", secret_file: s}, lease: {duration: 30s, margin: 3s}}\n", true},
		"one route":         {config, validConfig + "nats: {mode: quorum, embedded: {cluster: \"127.0.0.1:1\", routes: [\"nats-route://127.0.0.1:2\"], secret_file: s}}\n", false},
		"no nats secret":    {config, validConfig + "nats: {mode: quorum, embedded: {cluster: \"127.0.0.1:1\", routes: [\"nats-route://127.0.0.1:2\", \"nats-route://127.0.0.1:3\"]}}\n", false},
		"external":          {config, validConfig + "nats: {mode: quorum, urls: [\"nats://a:4222\"]}\n", true},
		"two registers":     {config, validConfig + "nats: {urls: [\"nats://a:4222\"], embedded: {}}\n", false},
		"solo cluster":      {config, validConfig + "nats: {embedded: {cluster: \"127.0.0.1:1\"}}\n", false},
		"solo register":     {config, validConfig + "nats: {mode: solo, embedded: {}}\n", true},
		"paired":            {config, validConfig + "nats: {mode: paired, embedded: {}}\n", false},
		"no secret":         {config, validConfig + "policies: {residency: r.yaml}\n", false},
		"empty secret":      {config, validConfig + "idempotency: {secret_file: \"\"}\npolicies: {residency: r.yaml}\n", false},
		"residency":         {config, validConfig + "idempotency: {secret_file: s}\npolicies: {residency: r.yaml}\n", true},
		"open listener":     {config, validConfig + "http: {listen: \"0.0.0.0:80\"}\n", false},
		"host with port":    {config, validConfig + "http: {allowed_hosts: [\"a.example:80\"]}\n", false},
		"host as URL":       {config, validConfig + "management: {allowed_hosts: [\"http://a.example\"]}\n", false},
		"any host":          {config, validConfig + "http: {allowed_hosts: [\"*\"]}\n", false},
		"no connections":    {config, validConfig + "management: {max_connections: 0}\n", false},
		"no readers":        {config, validConfig + "http: {max_readers: 0}\n", false},
		"limits":            {config, validConfig + "limits: {batch_unfolded: 128MiB, record_headers: 100, header_bytes: 65536, key: 1KiB}\n", true},
		"no headers":        {config, validConfig + "limits: {record_headers: 0}\n", false},
		"any headers":       {config, validConfig + "limits: {record_headers: 1000001}\n", false},
		"decimal size":      {config, validConfig + "http: {max_body: 32MB}\n", false},
		"bare duration":     {config, validConfig + "drain: 30\n", false},
		"level":             {config, validConfig + "log: {level: loud}\n", false},
		"ownership":         {ownership, head + "domains:\n  - {name: air, match: [flights], kind: entity, mode: multi_writer, policy: lww, partitions: 6}\n  - {name: repos, match: [\"git*\"], kind: events, mode: multi_writer}\n", true},
		"no domains":        {ownership, head, true},
		"no kind":           {ownership, "version: 1\n", false},
		"no owner":          {ownership, head + "domains: [{name: a, match: [a], kind: entity, mode: single_region}]\n", false},
		"single region":     {ownership, head + "domains: [{name: a, match: [a], kind: entity, mode: single_region, owner: eu, on_foreign_write: reject}]\n", true},
		"by key":            {ownership, head + "domains: [{name: a, match: [a], kind: entity, mode: by_key, owner: 'headers[\"home\"]'}]\n", true},
		"forward":           {ownership, head + "domains: [{name: a, match: [a], kind: entity, mode: single_region, owner: eu, on_foreign_write: forward}]\n", false},
		"owner":             {ownership, head + "domains: [{name: a, match: [a], kind: entity, mode: multi_writer, owner: eu}]\n", false},
		"counter":           {ownership, head + "domains: [{name: a, match: [a], kind: entity, mode: multi_writer, policy: counter}]\n", false},
		"policy of events":  {ownership, head + "domains: [{name: a, match: [a], kind: events, mode: multi_writer, policy: lww}]\n", false},
		"no match":          {ownership, head + "domains: [{name: a, match: [], kind: events, mode: multi_writer}]\n", false},
		"border":            {residency, border + "max_age: 1h\ngroups: {europe: [eu]}\ntopics: [{match: [\"a*\"], format: json}]\nrules: [{id: a, effect: allow, topics: [\"a*\"], from: [\"@europe\"], to: [\"*\"], when: key == \"x\"}]\n", true},
		"default allow":     {residency, strings.Replace(border, "deny", "allow", 1) + "rules: [{id: a, effect: allow, topics: [a], from: [eu], to: [us]}]\n", false},
		"no rules":          {residency, border, false},
		"rule default":      {residency, border + "rules: [{id: default, effect: allow, topics: [a], from: [eu], to: [us]}]\n", false},
		"empty when":        {residency, border + "rules: [{id: a, effect: allow, topics: [a], from: [eu], to: [us], when: \"\"}]\n", false},
		"expression topic":  {residency, border + "rules: [{id: a, effect: allow, topics: [/a/], from: [eu], to: [us]}]\n", false},
		"tombstones":        {residency, border + "rules: [{id: a, effect: allow, topics: [a], from: [eu], to: [us], tombstones: pass}]\n", false},
		"no source":         {residency, border + "rules: [{id: a, effect: allow, topics: [a], from: [], to: [us]}]\n", false},
		"domain default":    {ownership, head + "domains: [{name: default, match: [a], kind: events, mode: multi_writer}]\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			schemaErr := tt.s.Validate(instance(t, tt.src))
			programErr := accept(map[*jsonschema.Schema]string{config: "config", ownership: "ownership", residency: "residency"}[tt.s], tt.src)
			if (schemaErr == nil) != tt.want {
				t.Errorf("schema: %v, want acceptance %t", schemaErr, tt.want)
			}
			if (programErr == nil) != tt.want {
				t.Errorf("program: %v, want acceptance %t", programErr, tt.want)
			}
		})
	}
}

// reached is validConfig with more members for the other region's Kafka.
func reached(members string) string {
	return strings.Replace(validConfig, "seeds: [127.0.0.1:29092]", "seeds: [127.0.0.1:29092], "+members, 1)
}

// accept reads a file as the program does.
func accept(kind, src string) error {
	switch kind {
	case "ownership":
		_, err := ownership.ParsePolicy("example", []byte(src))
		return err
	case "residency":
		_, err := residency.Parse("example", []byte(src), nil)
		return err
	}
	c := node.Defaults()
	if err := strict.Decode("example", []byte(src), &c); err != nil {
		return err
	}
	return c.Complete().Validate()
}

// TestDocumentedExamples checks every whole file that the documentation shows,
// by the schema and by the program.
func TestDocumentedExamples(t *testing.T) {
	schemas := map[string]*jsonschema.Schema{
		"config": compile(t, "config", schema.Config()), "ownership": compile(t, "ownership", schema.Ownership()),
		"residency": compile(t, "residency", schema.Residency()),
	}
	root, found := filepath.Join("..", ".."), 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		var examples []string
		switch {
		case strings.HasSuffix(path, ".md"):
			examples = fenced(t, path)
		case strings.HasSuffix(path, ".yaml"):
			examples = []string{read(t, path)}
			if strings.Contains(path, "/kept/") { // of before there was a secret of the register
				examples[0] = strings.Replace(examples[0], "    name: ctl-", "    secret_file: nats.secret\n    name: ctl-", 1)
			}
		}
		for _, src := range examples {
			if !strings.Contains("\n"+src, "\nversion: 1\n") {
				continue
			}
			kind := ""
			switch {
			case strings.Contains(src, "kind: OwnershipPolicy"):
				kind = "ownership"
			case strings.Contains(src, "kind: ResidencyPolicy"):
				kind = "residency"
			case strings.Contains("\n"+src, "\nregion:"):
				kind = "config"
			default:
				continue
			}
			found++
			if err := schemas[kind].Validate(instance(t, src)); err != nil {
				t.Errorf("%s: schema: %v", path, err)
			}
			if err := accept(kind, src); err != nil {
				t.Errorf("%s: program: %v", path, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found == 0 {
		t.Error("no example found in the documentation")
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// fenced gives the yaml blocks of a Markdown file.
func fenced(t *testing.T, path string) []string {
	t.Helper()
	var blocks []string
	parts := strings.Split(read(t, path), "\n```")
	for i := 1; i < len(parts); i += 2 {
		if body, ok := strings.CutPrefix(parts[i], "yaml\n"); ok {
			blocks = append(blocks, body+"\n")
		}
	}
	return blocks
}
