package gateway

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/geogate/geogate/router/ownership"
)

// commanded takes ownership commands.
type commanded struct {
	owned
	got  []ownership.Command
	acts []ownership.RegisterAct
}

func (o *commanded) Command(_ context.Context, c ownership.Command) (ownership.Result, error) {
	o.got = append(o.got, c)
	return ownership.Result{Units: []ownership.FencedUnit{}}, nil
}

func (o *commanded) Act(_ context.Context, act ownership.RegisterAct) (ownership.RegisterPlan, error) {
	o.acts = append(o.acts, act)
	return ownership.RegisterPlan{Detail: "done", Steps: []string{"a step"}}, nil
}

// TestRegisterActs: what is done to the register is named in the path, has a reason unless
// it is only planned, and no member that is not known.
func TestRegisterActs(t *testing.T) {
	reg := &commanded{}
	w := newWorld(t, func(_ *Config, d *Deps) { d.Ownership = reg })
	h := w.s.managementHandler()
	for name, tt := range map[string]struct {
		path, body string
		status     int
		want       ownership.RegisterAct
	}{
		"abandon":        {"abandon", `{"reason":"moving"}`, 200, ownership.RegisterAct{Verb: ownership.RegisterAbandon, Reason: "moving"}},
		"dry":            {"abandon", `{"dry_run":"true"}`, 200, ownership.RegisterAct{Verb: ownership.RegisterAbandon, DryRun: true}},
		"no reason":      {"abandon", `{}`, 400, ownership.RegisterAct{}},
		"unknown member": {"abandon", `{"server":"ctl-eu","reason":"x"}`, 400, ownership.RegisterAct{}},
		"perhaps":        {"abandon", `{"reason":"x","dry_run":"perhaps"}`, 400, ownership.RegisterAct{}},
		"repair":         {"repair", `{"reason":"disk restored"}`, 200, ownership.RegisterAct{Verb: ownership.RegisterRepair, Reason: "disk restored"}},
		"replace":        {"replace", `{"server":"ctl-eu","reason":"lost"}`, 200, ownership.RegisterAct{Verb: ownership.RegisterReplace, Server: "ctl-eu", Reason: "lost"}},
		"nobody":         {"replace", `{"reason":"lost"}`, 400, ownership.RegisterAct{}},
		"nothing known":  {"forget", `{"reason":"x"}`, 404, ownership.RegisterAct{}},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(reg.acts)
			r := do(t, h, request{method: "POST", path: "/v1/register/" + tt.path, body: tt.body, header: map[string]string{"Content-Type": "application/json"}})
			body, err := io.ReadAll(r.Body)
			if r.StatusCode != tt.status || err != nil {
				t.Fatalf("%d: %s, %v", r.StatusCode, body, err)
			}
			if tt.status != 200 {
				if len(reg.acts) != before {
					t.Error("it was done")
				}
				return
			}
			if got := reg.acts[len(reg.acts)-1]; got != tt.want || string(body) != `{"exit":0,"detail":"done","dry_run":false,"steps":["a step"]}`+"\n" {
				t.Errorf("%+v: %s", got, body)
			}
		})
	}
}

// TestCommandBodies: a command is carried out only as it was meant: by a client
// that says that it sends JSON, which a web page cannot have a browser do, with
// nothing behind it, and a reason that fits into a line.
func TestCommandBodies(t *testing.T) {
	reg := &commanded{}
	w := newWorld(t, func(_ *Config, d *Deps) { d.Ownership = reg })
	h := w.s.managementHandler()
	const good = `{"region":"eu","reason":"planned: Wartung, 15 min"}`
	for name, tt := range map[string]struct {
		media, body string
		status      int
		code        string
	}{
		"good":              {"application/json; charset=utf-8", good, 200, ""},
		"no type":           {"", good, 415, "UNSUPPORTED_MEDIA_TYPE"},
		"a page's type":     {"text/plain", good, 415, "UNSUPPORTED_MEDIA_TYPE"},
		"a form":            {"application/x-www-form-urlencoded", good, 415, "UNSUPPORTED_MEDIA_TYPE"},
		"two objects":       {"application/json", good + good, 400, "MALFORMED"},
		"trailing bytes":    {"application/json", good + "x", 400, "MALFORMED"},
		"no reason":         {"application/json", `{"region":"eu"}`, 400, "MALFORMED"},
		"both":              {"application/json", `{"region":"eu","unit":"air/eu","reason":"x"}`, 400, "MALFORMED"},
		"a member twice":    {"application/json", `{"region":"eu","region":"us","reason":"x"}`, 400, "MALFORMED"},
		"another case":      {"application/json", `{"Region":"eu","reason":"x"}`, 400, "MALFORMED"},
		"a number":          {"application/json", `{"region":1,"reason":"x"}`, 400, "MALFORMED"},
		"null":              {"application/json", `{"region":null,"unit":"air/eu","reason":"x"}`, 400, "MALFORMED"},
		"a list":            {"application/json", `["region","eu"]`, 400, "MALFORMED"},
		"not UTF-8":         {"application/json", "{\"region\":\"eu\",\"reason\":\"\xff\"}", 400, "MALFORMED"},
		"half a character":  {"application/json", `{"region":"eu","reason":"\ud800"}`, 400, "MALFORMED"},
		"too long":          {"application/json", good + strings.Repeat(" ", maxCommand), 413, "BODY_TOO_LARGE"},
		"unknown member":    {"application/json", `{"region":"eu","reason":"x","force":true}`, 400, "MALFORMED"},
		"terminal's escape": {"application/json", `{"region":"eu","reason":"\u001b[31mx"}`, 400, "MALFORMED"},
		"two lines":         {"application/json", `{"region":"eu","reason":"a\nb"}`, 400, "MALFORMED"},
		"right to left":     {"application/json", `{"region":"eu","reason":"\u202ex"}`, 400, "MALFORMED"},
		"long reason":       {"application/json", `{"region":"eu","reason":"` + strings.Repeat("x", maxReason+1) + `"}`, 400, "MALFORMED"},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(reg.got)
			req := request{method: "POST", path: "/v1/fence", body: tt.body}
			if tt.media != "" {
				req.header = map[string]string{"Content-Type": tt.media}
			}
			r := do(t, h, req)
			if r.StatusCode != tt.status {
				t.Fatalf("answered %d %s", r.StatusCode, text(t, r))
			}
			if tt.status != 200 {
				if p := problemOf(t, r); p["code"] != tt.code {
					t.Errorf("answered %v", p)
				}
			}
			if done := len(reg.got) > before; done != (tt.status == 200) {
				t.Errorf("carried out: %t", done)
			}
		})
	}
}
