package world_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/world"
)

// bordered starts a world under a residency policy; change puts other rules in
// its place.
func bordered(t *testing.T, rules ...string) (w *world.World, change func(rules ...string), path string) {
	t.Helper()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	path = filepath.Join(dir, "residency.yaml")
	if err := os.WriteFile(secret, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	revision := 0
	change = func(rules ...string) {
		t.Helper()
		revision++
		src := fmt.Sprintf("version: 1\nkind: ResidencyPolicy\nname: demo\nrevision: %d\ndefault: deny\nmax_age: 2s\nrules:\n  - %s\n",
			revision, strings.Join(rules, "\n  - "))
		if err := os.WriteFile(path+".new", []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	change(rules...)
	w = world.Start(t, world.Options{Configure: func(c *node.Config) {
		c.Policies.Residency, c.Idempotency.SecretFile = path, secret
	}})
	return w, change, path
}

const (
	fromUS  = `{id: from-us, effect: allow, topics: ["*"], from: [us], to: ["*"]}`
	euKeys  = `{id: public, effect: allow, topics: [github, flights], from: [eu], to: ["*"], when: 'key.startsWith("pub")'}`
	euNotes = `{id: notes, effect: allow, topics: [notes], from: [eu], to: ["*"], when: 'key.startsWith("pub")'}`
	euOpen  = `{id: open, effect: allow, topics: [github, flights], from: [eu], to: ["*"]}`
)

func status(t *testing.T, r *world.Region) gateway.Status {
	t.Helper()
	var st gateway.Status
	if err := r.Instance(0).Manage(limit(t), "/v1/status", &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// warns tells whether there is a warning with a code whose subject begins, and whose detail
// contains, what is given.
func warns(all []warning.Warning, code warning.Code, subject, detail string) bool {
	return slices.ContainsFunc(all, func(w warning.Warning) bool {
		return w.Code == code && strings.HasPrefix(w.Subject, subject) && strings.Contains(w.Detail, detail)
	})
}

func eventually(w *world.World, what string, so func() bool) {
	w.Eventually(what, func() error {
		if !so() {
			return errors.New("it is not so")
		}
		return nil
	})
}

// TestBorder keeps keys of one region at home, through changes of the policy.
func TestBorder(t *testing.T) {
	t.Parallel()
	w, change, path := bordered(t, fromUS, euKeys, euNotes)
	us, eu := w.Region("us"), w.Region("eu")
	keys := func(r *world.Region) []string {
		var out []string
		for _, x := range records(t, r, github, "merged") {
			out = append(out, x.Key.Text())
		}
		slices.Sort(out)
		return out
	}
	us.Put(github, "pub-us", `1`)
	for i := range 10 {
		eu.Put(github, fmt.Sprintf("prv-%d", i), `2`)
		eu.Put(github, fmt.Sprintf("pub-%d", i), `3`)
	}
	w.Run("only what rules allow arrives", func(t *testing.T, _ *world.World) {
		eventually(w, "all that may cross", func() bool { return len(keys(us)) == 11 })
		eventually(w, "everything at home", func() bool { return len(keys(eu)) == 21 })
		if slices.ContainsFunc(keys(us), func(k string) bool { return strings.HasPrefix(k, "prv") }) {
			t.Fatalf("us shows %v", keys(us))
		}
		st := status(t, eu)
		if st.Residency.State != "on" || st.Residency.Name != "demo" || st.Residency.Revision != 1 || len(st.Residency.SHA256) != 64 {
			t.Fatalf("%+v", st.Residency)
		}
	})
	w.Run("topic list says which rule decides", func(t *testing.T, _ *world.World) {
		var list gateway.TopicList
		if err := eu.Instance(0).Manage(limit(t), "/v1/topics", &list); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, x := range list.Topics {
			for _, l := range x.Links {
				switch {
				case x.Name == github && l.State == "included" && strings.Contains(l.Rule, "rules decide for each record"),
					x.Name == notes && l.State == "blocked" && strings.Contains(l.Rule, "domain notes keeps siblings"):
					seen++
				}
			}
		}
		if seen != 2 {
			t.Fatalf("%+v", list.Topics)
		}
	})
	w.Run("a change is obeyed without a restart", func(t *testing.T, _ *world.World) {
		change(fromUS, euOpen)
		eventually(w, "the change", func() bool { return status(t, eu).Residency.Revision == 2 })
		eu.Put(github, "prv-open", `4`)
		eventually(w, "what is allowed now", func() bool { return slices.Contains(keys(us), "prv-open") })
		change(fromUS, euKeys)
		eventually(w, "the change back", func() bool { return status(t, eu).Residency.Revision == 3 })
		eu.Put(github, "prv-closed", `5`)
		eu.Put(github, "pub-last", `6`)
		eventually(w, "the last one", func() bool { return slices.Contains(keys(us), "pub-last") })
		if slices.Contains(keys(us), "prv-closed") {
			t.Fatalf("us shows %v", keys(us))
		}
	})
	w.Run("a file that no longer loads stops egress, and one that does opens it", func(t *testing.T, _ *world.World) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		eventually(w, "a warning", func() bool {
			st := status(t, eu)
			return st.Residency.State == "on" && warns(st.Warnings, warning.ResidencyInvalid, "residency", "does not load")
		})
		eventually(w, "the stop", func() bool { return status(t, eu).Residency.State == "stopped" })
		eu.Put(github, "pub-late", `7`)
		change(fromUS, euKeys)
		eventually(w, "the file again", func() bool { return status(t, eu).Residency.State == "on" })
		eventually(w, "what waited", func() bool { return slices.Contains(keys(us), "pub-late") })
	})
}

const secretStays = `{id: secret, effect: deny, topics: ["*"], from: [eu], to: ["*"], when: 'has(headers.class) && headers.class == "secret"'}`

// TestRestrictedContext: a write in a region that was not shown an update does not
// beat it as if it had seen it, also after the policy was loosened.
func TestRestrictedContext(t *testing.T) {
	t.Parallel()
	w, change, _ := bordered(t, fromUS, euOpen, secretStays)
	us, eu := w.Region("us"), w.Region("eu")
	first := eu.Put(flights, "k", `{"n":1}`)
	entity(t, us, flights, "k", world.Token(first.Token))
	hidden := eu.Put(flights, "k", `{"n":2}`, world.Header("class", "secret"))
	behind := eu.Put(flights, "k2", `{"n":3}`)
	for i := range 8 { // some of them in the partition of k, behind what is hidden
		behind = eu.Put(flights, fmt.Sprintf("other-%d", i), `{}`)
	}
	entity(t, us, flights, "other-7", world.Token(behind.Token))
	w.Settle(flights)
	if e := entity(t, us, flights, "k"); e.Dot != first.Dot {
		t.Fatalf("us shows %+v", e)
	}
	change(fromUS, euOpen) // what was hidden stays so, and us does not claim to have seen it
	eventually(w, "the change", func() bool { return status(t, eu).Residency.Revision == 2 })
	for i := range 8 {
		behind = eu.Put(flights, fmt.Sprintf("later-%d", i), `{}`)
	}
	w.Settle(flights)
	last := us.Put(flights, "k", `{"n":4}`)
	entity(t, eu, flights, "k", world.Token(last.Token))
	w.Settle(flights)
	if e := entity(t, eu, flights, "k"); e.Dot != last.Dot || len(e.Siblings) != 1 || e.Siblings[0].Dot != hidden.Dot {
		t.Fatalf("eu shows %+v, want %s above the live %s", e, last.Dot, hidden.Dot)
	}
	if e := entity(t, us, flights, "k"); e.Dot != last.Dot || len(e.Siblings) != 0 {
		t.Fatalf("us shows %+v", e)
	}
	feed := conflicts(t, eu, flights, "k")
	if len(feed) != 1 || feed[0].Reason != "concurrent" || feed[0].Lost.Dot != hidden.Dot || feed[0].Won.Dot != last.Dot {
		t.Fatalf("feed %+v", feed)
	}
	// The next write of eu has seen both; from then on the regions agree again.
	end := eu.Put(flights, "k", `{"n":5}`)
	entity(t, us, flights, "k", world.Token(end.Token))
	w.Settle(flights)
	if a, b := entity(t, us, flights, "k"), entity(t, eu, flights, "k"); a.Dot != end.Dot || b.Dot != end.Dot || a.Version != b.Version {
		t.Fatalf("us shows %+v, eu %+v", a, b)
	}
}
