package mm2_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/geogate/geogate/replicate/mm2"
	"github.com/geogate/geogate/router"
)

// TestReadProperties holds the reader to java.util.Properties, whose rules are those of
// its documentation, and to the lines of the file.
func TestReadProperties(t *testing.T) {
	src := "# a comment \\\n! another\n\na=1\r\n  b : 2\rc 3\nd\\ e=4\\\n   , 5\\\n\n f=\\u0041\\\\x\ng=${file:/x:y}\nh\na=6\nk=\\\n#7\nl=8\\"
	want := []mm2.Setting{
		{Line: 4, Key: "a", Value: "1"},
		{Line: 5, Key: "b", Value: "2"},
		{Line: 6, Key: "c", Value: "3"},
		{Line: 7, Key: "d e", Value: "4, 5"},
		{Line: 10, Key: "f", Value: `A\x`},
		{Line: 11, Key: "g", Value: "${file:/x:y}"},
		{Line: 12, Key: "h", Value: ""},
		{Line: 13, Key: "a", Value: "6"},
		{Line: 14, Key: "k", Value: "#7"},
		{Line: 16, Key: "l", Value: "8"},
	}
	got, err := mm2.ReadProperties("x", []byte(src))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("read %v, %v\nwant %v", got, err, want)
	}

	_, err = mm2.ReadProperties("x", []byte("a=1\nb=\\u00zz\n"))
	var at *mm2.LineError
	if !errors.As(err, &at) || at.Line != 2 {
		t.Errorf("a broken escape: %v", err)
	}
	if _, err := mm2.ReadProperties("x", make([]byte, 5<<20)); err == nil {
		t.Error("a file of 5 MiB was read")
	}
}

func TestPatterns(t *testing.T) {
	names := []string{"orders", "orders.v1", "ordersXv1", "orders-v1", "audit12", "audit123", "a", "ab", "aab", "x.y.z", "mm2-x.internal", "mm2.internal", "b.replica", "__consumer"}
	for _, tt := range []struct{ list, want string }{
		{".*", "*"},
		{"orders", "orders"},
		{"orders.v1", "orders?v1"},
		{`orders\.v1 , orders\-.+`, "orders.v1 orders-?*"},
		{"audit[0-9]{2}", "/audit[0-9]{2}/"},
		{"a*b", "/a*b/"},
		{"a.?b", "/a.?b/"},
		{".*+", "refused"},
		{".*.*", "/.*.*/"},
		{"(orders|audit).*", "/(orders|audit).*/"},
		{"[]a]+", "/[]a]+/"},
		{"[^]]+", "/[^]]+/"},
		{mm2.DefaultExclude, "mm2*.internal *.replica __*"},
		{"", ""},
		{"a,,b", "refused"},
		{"a{1,2}", "refused"}, // MirrorMaker 2 splits it too, and fails
		{"{1}", "refused"},
		{`\p{Lower}+`, "refused"}, // a class of Java's own
		{`\p{L}+.x{2}`, `/\p{L}+.x{2}/`},
		{"(?!x).*", "refused"},
		{`(a)\1`, "refused"},
		{"a++b", "refused"},
		{"[a-z&&[^b]]+", "refused"},
		{"[a[b]]", "refused"},
		{"(", "refused"},
		{"a\nb", "refused"},
	} {
		got, err := mm2.Patterns(tt.list)
		if (err != nil) != (tt.want == "refused") || err == nil && strings.Join(got, " ") != tt.want {
			t.Errorf("%q gives %q, %v; want %q", tt.list, got, err, tt.want)
			continue
		}
		matcher, err := router.NewMatcher(got, nil)
		if err != nil {
			t.Errorf("%q gives a pattern that a link refuses: %v", tt.list, err)
			continue
		}
		for _, name := range names {
			want := false
			for item := range strings.SplitSeq(tt.list, ",") {
				re, err := regexp.Compile(`^(?:` + strings.TrimSpace(item) + `)$`)
				want = want || err == nil && tt.list != "" && tt.want != "refused" && re.MatchString(name)
			}
			if got := matcher.Match(name).Included; got != want {
				t.Errorf("%q as %q: %s is included: %v, want %v", tt.list, tt.want, name, got, want)
			}
		}
	}
}

// TestImport tells what becomes of the settings of a file in which each kind occurs.
func TestImport(t *testing.T) {
	im, err := mm2.ReadFile("mm2.properties", []byte(`clusters = us, eu, ap
bootstrap.servers = all:9092
us.bootstrap.servers = us-1:9092, us-2:9092
eu.bootstrap.servers = eu:9092
us->eu.enabled = TRUE
eu->us.enabled = true
us->ap.enabled = yes
ap->us.topics = x
topics = orders, .*-log
eu->us.topics = flights
us->eu.topics.exclude = orders-tmp
topics = orders
us.consumer.max.poll.records = 5
us->eu.producer.override.acks = all
us.sasl.jaas.config = PlainLoginModule required password="hunter2";
us.ssl.keystore.pasword = hunter2
us->eu.tpoics = hunter2
us->xx.topics = a
security.protocol = PLAINTEXT
offset.storage.topic = x
heartbeats.topic.replication.factor = 1
emit.checkpoints.enabled = false
transforms.a.type = x
enabled = true
`), "/s")
	if err != nil {
		t.Fatal(err)
	}
	if c := im.Clusters; len(c) != 3 || !slices.Equal(c[0].Seeds, []string{"us-1:9092", "us-2:9092"}) || !slices.Equal(c[2].Seeds, []string{"all:9092"}) {
		t.Errorf("clusters %v", c)
	}
	if f := im.Flows; len(f) != 2 || !slices.Equal(f[0].Include, []string{"orders"}) || !slices.Equal(f[0].Exclude, []string{"orders-tmp", "heartbeats", "mm2*.internal", "*.checkpoints.internal", "eu.*", "ap.*"}) ||
		!slices.Equal(f[1].Include, []string{"flights"}) || !slices.Equal(f[1].Exclude, []string{"mm2*.internal", "*.replica", "__*", "heartbeats", "*.checkpoints.internal", "us.*", "ap.*"}) {
		t.Errorf("flows %v", f)
	}
	want := map[int]mm2.Outcome{
		1: mm2.TakenOver, 2: mm2.TakenOver, 3: mm2.TakenOver, 4: mm2.TakenOver, 5: mm2.TakenOver, 6: mm2.TakenOver, 7: mm2.Changed, 8: mm2.NoEffect,
		9: mm2.NoEffect, 10: mm2.TakenOver, 11: mm2.TakenOver, 12: mm2.TakenOver, 13: mm2.NoEffect, 14: mm2.NoEffect, 15: mm2.NoEffect, 16: mm2.Unknown,
		17: mm2.Unknown, 18: mm2.Unknown, 19: mm2.TakenOver, 20: mm2.NoEffect, 21: mm2.Changed, 22: mm2.NoEquivalent, 23: mm2.NoEquivalent, 24: mm2.NoEffect,
	}
	got := make(map[int]mm2.Outcome)
	for _, r := range im.Results {
		if r.Line > 0 {
			got[r.Line] = r.Outcome
		}
		if r.Outcome != mm2.TakenOver && r.Note == "" {
			t.Errorf("line %d, %s: %s without a note", r.Line, r.Key, r.Outcome)
		}
	}
	for line, outcome := range want {
		if got[line] != outcome {
			t.Errorf("line %d is %s, want %s", line, got[line], outcome)
		}
	}
	for line, near := range map[int]string{16: "did you mean us.ssl.keystore.password?", 17: "did you mean us->eu.topics?", 18: "clusters = us, eu, ap"} {
		if r := im.Results[line-1]; !strings.Contains(r.Note, near) {
			t.Errorf("line %d: %q, want %q in it", line, r.Note, near)
		}
	}
	if out, err := json.Marshal(im); err != nil || strings.Contains(string(out), "hunter2") {
		t.Errorf("a secret is shown: %s, %v", out, err)
	}
}

// TestConnections takes over how clusters are reached, or says of each setting why not.
func TestConnections(t *testing.T) {
	const head = "clusters = us, eu\nus.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\nus->eu.enabled = true\n"
	const login = `required username="gate" password="hunter2";` + "\n"
	const plain, scram = "org.apache.kafka.common.security.plain.PlainLoginModule ", "org.apache.kafka.common.security.scram.ScramLoginModule "
	type outcomes map[string]mm2.Outcome
	for name, tt := range map[string]struct {
		src  string
		us   string // tls, sasl and the files to write, in short
		want outcomes
	}{
		"in the clear": {"us.security.protocol = PLAINTEXT\nus.ssl.truststore.location = x\n", "- -", outcomes{"us.security.protocol": mm2.TakenOver, "us.ssl.truststore.location": mm2.NoEffect}},
		"pem": {
			"us.security.protocol = SSL\nus.ssl.truststore.type = PEM\nus.ssl.truststore.location = /ca.pem\nus.ssl.keystore.type = PEM\nus.ssl.keystore.location = /own.pem\n",
			"/ca.pem,/own.pem,/own.pem -",
			outcomes{"us.ssl.truststore.location": mm2.TakenOver, "us.ssl.keystore.location": mm2.TakenOver},
		},
		"jks": {
			"us.security.protocol = SSL\nus.ssl.truststore.location = /ca.jks\nus.ssl.truststore.password = hunter2\n",
			"/s/us-ca.pem,, - /s/us-ca.pem",
			outcomes{"us.ssl.truststore.location": mm2.Changed, "us.ssl.truststore.password": mm2.NoEffect},
		},
		"of the whole file": {
			"security.protocol = SASL_SSL\nsasl.mechanism = SCRAM-SHA-512\nsasl.jaas.config = " + scram + login,
			",, scram-sha-512,gate,/s/us.password /s/us.password",
			outcomes{"security.protocol": mm2.TakenOver, "sasl.jaas.config": mm2.Changed},
		},
		"mixed": {
			"security.protocol = SASL_PLAINTEXT\nsasl.mechanism = PLAIN\nus.sasl.jaas.config = " + plain + login + "eu.security.protocol = PLAINTEXT\n",
			"- plain,gate,/s/us.password /s/us.password",
			outcomes{"security.protocol": mm2.TakenOver, "us.sasl.jaas.config": mm2.Changed},
		},
		"kerberos": {
			"us.security.protocol = SASL_PLAINTEXT\nus.sasl.mechanism = GSSAPI\nus.sasl.jaas.config = com.sun.security.auth.module.Krb5LoginModule required;\n",
			"- -",
			outcomes{"us.security.protocol": mm2.NoEquivalent, "us.sasl.mechanism": mm2.NoEquivalent},
		},
		"no login":   {"us.security.protocol = SASL_SSL\nus.sasl.mechanism = PLAIN\n", "- -", outcomes{"us.security.protocol": mm2.NoEquivalent}},
		"one client": {"us.consumer.security.protocol = SSL\nus.sasl.login.refresh.window.factor = 1\n", "- -", outcomes{"us.consumer.security.protocol": mm2.NoEquivalent, "us.sasl.login.refresh.window.factor": mm2.NoEffect}},
	} {
		im, err := mm2.ReadFile("x", []byte(head+tt.src), "/s")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		us := im.Clusters[0]
		tls, sasl, write := "-", "-", ""
		if us.TLS != nil {
			tls = strings.Join([]string{us.TLS.CAFile, us.TLS.CertFile, us.TLS.KeyFile}, ",")
		}
		if us.SASL != nil {
			sasl = strings.Join([]string{us.SASL.Mechanism, us.SASL.Username, us.SASL.PasswordFile}, ",")
		}
		for _, f := range us.Write {
			write += " " + f.File
		}
		if got := tls + " " + sasl + write; got != tt.us {
			t.Errorf("%s: %q, want %q", name, got, tt.us)
		}
		for _, r := range im.Results {
			if want, ok := tt.want[r.Key]; ok && r.Outcome != want {
				t.Errorf("%s: %s is %s (%s), want %s", name, r.Key, r.Outcome, r.Note, want)
			}
		}
		if out, err := json.Marshal(im); err != nil || strings.Contains(string(out), "hunter2") {
			t.Errorf("%s: a secret is shown: %s, %v", name, out, err)
		}
	}
}

// TestDefaults: a default of MirrorMaker 2 is in the report if it counts for an enabled flow.
func TestDefaults(t *testing.T) {
	const head = "clusters = us, eu\nus.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\nus->eu.enabled = true\n"
	for src, want := range map[string]bool{
		head:                                 true,
		head + "topics.exclude = a":          false,
		head + "us->eu.topics.exclude = a":   false,
		head + "us->eu.topics.blacklist = a": false,
		head + "eu->us.topics.exclude = a":   true, // a flow that is not enabled
		head + "eu->us.enabled = true\neu->us.topics.exclude = a": true,
		head + "eu->us.enabled = true\ntopics.blacklist = a":      false,
	} {
		im, err := mm2.ReadFile("x", []byte(src), "/s")
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(im.Results, func(r mm2.Result) bool { return r.Line == 0 && r.Key == "topics.exclude" }); got != want {
			t.Errorf("%q: the default of topics.exclude is in the report: %t, want %t", src, got, want)
		}
	}
}

// TestRefused gives every mistake its line.
func TestRefused(t *testing.T) {
	const head = "clusters = us, eu\nus.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\nus->eu.enabled = true\n"
	for _, tt := range []struct{ src, want string }{
		{"", "x: no clusters"},
		{"clusters = A", `x:1: alias "A"`},
		{"clusters = us, us", "x:1: alias us is in the list twice"},
		{"clusters = a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p", "x:1: 16 clusters"},
		{"clusters = us, eu\nus.bootstrap.servers = a:1\nus->eu.enabled = true", "x:1: cluster eu has no brokers"},
		{"clusters = us, eu\nus.bootstrap.servers = ${env:US}\neu.bootstrap.servers = b:1", "x:2: us.bootstrap.servers has a value from a configuration provider"},
		{strings.Replace(head, "true", "false", 1), "x:1: no flow is enabled"},
		{head + "topics = (", `x:5: topics: "("`},
		{head + "topics =", "x:5: topics is empty"},
		{head + "topics.exclude = (?=a)", "x:5: topics.exclude"},
		{head + "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy", "x:5: org.apache.kafka.connect.mirror.IdentityReplicationPolicy"},
		{head + "us->eu.replication.policy.separator = __", `x:5: links name copies <alias>.<topic>, with a dot, and cannot use the separator "__"`},
	} {
		if _, err := mm2.ReadFile("x", []byte(tt.src), "/s"); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.src, err, tt.want)
		}
	}
	// Mistakes come all at once.
	if _, err := mm2.ReadFile("x", []byte(head+"topics = (\ntopics.exclude = ("), "/s"); err == nil || strings.Count(err.Error(), "x:") != 2 {
		t.Errorf("two mistakes: %v", err)
	}
}

// FuzzReadFile looks for panics, for patterns that a link refuses, and for secrets that
// are shown.
func FuzzReadFile(f *testing.F) {
	f.Add("clusters = us, eu\nus.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\nus->eu.enabled = true\ntopics = a.*, [b]+\nus.ssl.key.password = s3cr3t\n")
	f.Add("clusters=a\\\n,b\nbootstrap.servers=x:1\na->b.enabled=true\na->b.topics=\\\\.\n")
	f.Fuzz(func(t *testing.T, src string) {
		im, err := mm2.ReadFile("x", []byte(src), "/s")
		if err != nil {
			return
		}
		for _, flow := range im.Flows {
			if _, err := router.NewMatcher(flow.Include, flow.Exclude); err != nil {
				t.Errorf("%v", err)
			}
		}
		for _, r := range im.Results {
			if r.Value != "***" && (strings.HasSuffix(r.Key, "password") || r.Outcome == mm2.Unknown) {
				t.Errorf("%s is shown", r.Key)
			}
		}
	})
}

// TestNoSecretIsShown puts secrets where people put them by mistake, and where plug-ins
// have them.
func TestNoSecretIsShown(t *testing.T) {
	const head = "clusters = us, eu\nus.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\nus->eu.enabled = true\n"
	const plain = "us.security.protocol = SASL_SSL\nus.sasl.mechanism = PLAIN\nus.sasl.jaas.config = org.apache.kafka.common.security.plain.PlainLoginModule required"
	for name, src := range map[string]string{
		"misspelt, twice":        "us.ssl.keystore.pasword = hunter2\nus.ssl.keystore.pasword = x\n",
		"a transformation's":     "transforms.a.api.key = hunter2\nus->eu.predicates.a.key = hunter2\n",
		"a converter's":          "value.converter.basic.auth.user.info = u:hunter2\n",
		"in a URL":               "us.security.protocol = SASL_SSL\nus.sasl.mechanism = OAUTHBEARER\nus.sasl.oauthbearer.token.endpoint.url = https://u:hunter2@host/token\n",
		"rest in quotes":         plain + "\n  username=\"u\" password=\\\n  \"x\"\n  \"hunter2\";\n",
		"rest without quotes":    plain + " username=\"u\" password=\nhunter2\n",
		"rest with a semicolon":  plain + " username=\"u\" password=\nhunter2;\n",
		"module and flag":        "us.security.protocol = SASL_SSL\nus.sasl.mechanism = PLAIN\nus.sasl.jaas.config = hunter2 required a=b;\n",
		"option of a name twice": plain + " hunter2=a hunter2=b;\n",
	} {
		im, err := mm2.ReadFile("x", []byte(head+src), "/s")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, r := range im.Results {
			if text := r.Key + " = " + r.Value + ": " + r.Note; strings.Contains(text, "hunter2") {
				t.Errorf("%s: line %d shows %s", name, r.Line, text)
			}
		}
	}
	im, err := mm2.ReadFile("x", []byte(head+"us.consumer.max.poll.records = 5\noffset.storage.topic = x\ntasks.max = 3\nerrors.tolerance = all\n"), "/s")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range im.Results {
		if r.Value == "***" && r.Key != "offset.storage.topic" {
			t.Errorf("%s is hidden", r.Key)
		}
	}
}
