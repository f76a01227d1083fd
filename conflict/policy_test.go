package conflict_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/geogate/geogate/conflict"
)

// Numbers and names of policies are unique, and the ownership file's schema allows
// exactly those names, with the same default.
func TestPolicies(t *testing.T) {
	names := conflict.PolicyNames()
	for i, p := range conflict.Policies() {
		if p.Rule == 0 || conflict.PolicyOf(p.Rule).Name != p.Name || slices.Index(names, p.Name) != i {
			t.Errorf("policy %q with number %d is registered twice, or has no number", p.Name, p.Rule)
		}
		if got, ok := conflict.PolicyNamed(p.Name); !ok || got.Rule != p.Rule {
			t.Errorf("PolicyNamed(%q) = %d, %v", p.Name, got.Rule, ok)
		}
		if p.Winner(nil) != -1 || p.Winner([]conflict.Live{{}}) != 0 {
			t.Errorf("policy %s: winners of nothing and of one value are %d and %d", p.Name, p.Winner(nil), p.Winner([]conflict.Live{{}}))
		}
	}
	if p, ok := conflict.PolicyNamed(""); !ok || p.Name != names[0] {
		t.Errorf("the default is %q, %v", p.Name, ok)
	}
	if p, ok := conflict.PolicyNamed("rule-77"); ok {
		t.Errorf("an unknown name gives %q", p.Name)
	}
	if p := conflict.PolicyOf(77); p.Name != "rule-77" || p.Winner([]conflict.Live{{}}) != 0 {
		t.Errorf("an unknown number gives %q", p.Name)
	}

	raw, err := os.ReadFile("../docs/schema/ownership-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema any
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	enum, def := policyMember(schema)
	if !slices.Equal(enum, names) || def != names[0] {
		t.Errorf("docs/schema/ownership-v1.json allows %v, default %q; policies are %v", enum, def, names)
	}
}

// policyMember finds what a schema says of the member "policy".
func policyMember(schema any) (enum []string, def string) {
	m, ok := schema.(map[string]any)
	if !ok {
		return nil, ""
	}
	if props, ok := m["properties"].(map[string]any); ok {
		if p, ok := props["policy"].(map[string]any); ok {
			for _, v := range p["enum"].([]any) {
				enum = append(enum, v.(string))
			}
			def, _ = p["default"].(string)
			return enum, def
		}
	}
	for _, v := range m {
		if enum, def = policyMember(v); enum != nil {
			return enum, def
		}
	}
	return nil, ""
}
