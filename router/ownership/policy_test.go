package ownership_test

import (
	"strings"
	"testing"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

func TestPolicy(t *testing.T) {
	src := `
version: 1
kind: OwnershipPolicy
domains:
  - {name: air, match: ["flights", "gates"], kind: entity, mode: multi_writer, policy: lww, partitions: 6}
  - {name: notes, match: ["notes"], kind: entity, mode: multi_writer, policy: keep}
  - {name: repos, match: ["github", "repo.*"], kind: events, mode: multi_writer, partitions: 6}
  - {name: carts, match: ["/cart-.*/"], kind: entity, mode: multi_writer}
`
	p, err := ownership.ParsePolicy("ownership.yaml", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]ownership.Domain{
		"flights": {Name: "air", Kind: conflict.Entities, Mode: ownership.MultiWriter, Rule: event.LWW, Partitions: 6},
		"notes":   {Name: "notes", Kind: conflict.Entities, Mode: ownership.MultiWriter, Rule: event.Keep},
		"repo.x":  {Name: "repos", Kind: conflict.Events, Mode: ownership.MultiWriter, Partitions: 6},
		"cart-1":  {Name: "carts", Kind: conflict.Entities, Mode: ownership.MultiWriter, Rule: event.LWW},
		"other":   {Name: "default", Kind: conflict.Events, Mode: ownership.MultiWriter},
	} {
		if got := p.Domain(topic); got != want {
			t.Errorf("%s is in %+v, want %+v", topic, got, want)
		}
	}
	if got := p.Domain("flights").Unit("us"); got != "air/us" {
		t.Error(got)
	}
	var declared []string
	for _, d := range p.Declared() {
		declared = append(declared, d.Topic)
		if d.Domain != p.Domain(d.Topic) || d.Partitions != d.Domain.Partitions {
			t.Errorf("declared %+v", d)
		}
	}
	if got := strings.Join(declared, " "); got != "flights gates notes github" {
		t.Errorf("declared: %s", got)
	}
	if n := len(p.Domains()); n != 5 {
		t.Errorf("%d domains", n)
	}
	var none ownership.Policy
	if d := none.Domain("x"); d.Name != ownership.DefaultDomain || d.Kind != conflict.Events {
		t.Errorf("without a file: %+v", d)
	}
}

func TestUnits(t *testing.T) {
	p, err := ownership.ParsePolicy("ownership.yaml", []byte(`
version: 1
kind: OwnershipPolicy
domains:
  - {name: catalogue, match: ["catalogue.*"], kind: entity, mode: single_region, owner: eu, on_foreign_write: reject}
  - {name: orders, match: ["orders"], kind: entity, mode: by_key, owner: 'headers["home"]', on_foreign_write: reject}
`))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(p.Home("us"), " "); got != "orders/us default/us" {
		t.Errorf("us claims %s", got)
	}
	if got := strings.Join(p.Home("eu"), " "); got != "catalogue orders/eu default/eu" {
		t.Errorf("eu claims %s", got)
	}
	for unit, want := range map[string]string{"catalogue": "eu", "orders/us": "us", "default/eu": "eu", "orders": "", "catalogue/us": "", "x/us": ""} {
		if got := p.HomeOf(unit); got != want {
			t.Errorf("home of %s is %q, want %q", unit, got, want)
		}
	}
	orders := p.Domain("orders")
	if home, err := orders.Region(nil, []event.Header{{Key: "home", Value: []byte("eu")}}, "orders", "us"); err != nil || home != "eu" {
		t.Errorf("home of record is %q, %v", home, err)
	}
	if _, err := orders.Region([]byte("k"), nil, "orders", "us"); err == nil {
		t.Error("a record without the header has a home")
	}
	one, err := router.NewTopology(router.Region{Name: "us", ID: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Check(one); err == nil {
		t.Error("a deployment without the owner is accepted")
	}
}

func TestPolicyErrors(t *testing.T) {
	const head = "version: 1\nkind: OwnershipPolicy\ndomains:\n"
	for name, tt := range map[string]struct{ src, want string }{
		"empty":         {"", "o:1:1: version: must be 1, the version of this file's form\no:1:1: kind: must be OwnershipPolicy"},
		"no owner":      {head + `  - {name: a, match: ["a"], kind: entity, mode: single_region}`, `o:4:5: domains[0].owner: needs to name the region that owns the domain`},
		"multi owner":   {head + `  - {name: a, match: ["a"], kind: entity, mode: multi_writer, owner: eu}`, `o:4:63: domains[0].owner: in a multi_writer domain every region owns what it writes`},
		"by key":        {head + `  - {name: a, match: ["a"], kind: entity, mode: by_key, owner: "key == 'a'"}`, `o:4:57: domains[0].owner: needs an expression over key and headers that gives a region, like headers["home"]: 1:1: must be a string, is bool`},
		"mode":          {head + `  - {name: a, match: ["a"], kind: entity, mode: by_kye}`, `o:4:43: domains[0].mode: unknown mode "by_kye"; did you mean "by_key"?`},
		"forward":       {head + `  - {name: a, match: ["a"], kind: entity, mode: multi_writer, on_foreign_write: forward}`, `o:4:63: domains[0].on_foreign_write: forward comes with a later version; this one knows reject`},
		"counter":       {head + `  - {name: a, match: ["a"], kind: entity, mode: multi_writer, policy: counter}`, `o:4:63: domains[0].policy: policy counter comes with a later version; this one knows lww and keep`},
		"policy":        {head + `  - {name: a, match: ["a"], kind: entity, mode: multi_writer, policy: lwww}`, `o:4:63: domains[0].policy: unknown policy "lwww"; did you mean "lww"?`},
		"events policy": {head + `  - {name: a, match: ["a"], kind: events, mode: multi_writer, policy: lww}`, `o:4:63: domains[0].policy: events topics have no conflict policy, each event stays`},
		"kind":          {head + `  - {name: a, match: ["a"], kind: entitty, mode: multi_writer}`, `o:4:29: domains[0].kind: unknown kind "entitty"; did you mean "entity"?`},
		"missing":       {head + `  - {name: a}`, "o:4:5: domains[0].match: needs at least one topic or pattern\no:4:5: domains[0].kind: needs to say events or entity\no:4:5: domains[0].mode: needs to say multi_writer, single_region or by_key"},
		"unreachable":   {head + "  - {name: a, match: [\"x*\"], kind: events, mode: multi_writer}\n  - {name: b, match: [\"xy\"], kind: events, mode: multi_writer}", `o:5:23: domains[1].match[0]: topic xy is matched by domain a before, and the first match wins`},
		"twice":         {head + "  - {name: a, match: [\"x\"], kind: events, mode: multi_writer}\n  - {name: a, match: [\"y\"], kind: events, mode: multi_writer}", `o:5:6: domains[1].name: domain a is there already`},
		"default":       {head + `  - {name: default, match: ["a"], kind: events, mode: multi_writer}`, `o:4:6: domains[0].name: default is the domain of unmatched topics and cannot be given`},
		"internal":      {head + `  - {name: a, match: ["_geogate.control"], kind: events, mode: multi_writer}`, `o:4:23: domains[0].match[0]: _geogate.control is an internal topic`},
		"partitions":    {head + `  - {name: a, match: ["a"], kind: events, mode: multi_writer, partitions: -1}`, `o:4:63: domains[0].partitions: -1 is not within 1 to 100000`},
		"key":           {head + `  - {name: a, match: ["a"], kind: events, mode: multi_writer, partition: 1}`, `o:4:63: domains[0].partition: unknown key; did you mean "partitions"?`},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := ownership.ParsePolicy("o", []byte(tt.src))
			if err == nil {
				t.Fatalf("accepted as %+v", p.Domains())
			}
			if got := err.Error(); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
	if _, err := ownership.LoadPolicy(t.TempDir() + "/none.yaml"); err == nil {
		t.Error("a missing file is accepted")
	}
}
