package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/geogate/geogate/internal/sleep"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"geogate": main})
}

// TestScripts runs testdata/*.txt: the command line as people and scripts see
// it. $STATUS_… are management listeners that give canned answers.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "eventually": eventually},
		Setup: func(env *testscript.Env) error {
			for name, answer := range map[string]string{
				"OK":        answerOK,
				"REGRESSED": strings.Replace(answerOK, `"register":null`, `"register":{"state":"regressed","voters":3,"reachable":3,"write_ms":0.6}`, 1),
				"NOQUORUM":  strings.Replace(answerOK, `"register":null`, `"register":{"state":"unreachable","voters":3,"reachable":1,"write_ms":null}`, 1),
				"WARNS": strings.Replace(answerOK, `"warnings":[]`,
					`"warnings":[{"code":"LINK_PARKED","subject":"us-eu flights/3","detail":"retention gap","severity":"error"}]`, 1),
				"NOTES": strings.Replace(answerOK, `"warnings":[]`,
					`"warnings":[{"code":"PATTERN_UNMATCHED","subject":"us-eu","detail":"pattern \"x\" matches no topic","severity":"notice"}]`, 1),
				"STANDS": strings.Replace(answerOK, `"parked":[]}`,
					`"parked":[],"standing":[{"topic":"flights","partition":3,"unit":"air/us","at":93,"reason":"air/us was cut there"}]}`, 1),
				"FENCED": strings.Replace(answerOK, `"parked":[]}`,
					`"parked":[],"standing":[{"topic":"flights","partition":0,"unit":"air/us","at":74,"reason":"air/us was cut there"},
					 {"topic":"flights","partition":3,"unit":"air/us","at":9,"reason":"air/us was cut there"}]}`, 1),
				"GARBAGE": `<html>`,
			} {
				server := httptest.NewServer(canned(answer))
				env.Defer(server.Close)
				env.Setenv("STATUS_"+name, server.URL)
			}
			server := httptest.NewServer(http.HandlerFunc(grown))
			env.Defer(server.Close)
			env.Setenv("INCIDENT_GROWN", server.URL)
			kept, err := filepath.Abs("../../testbench/data/kept")
			if err != nil {
				return fmt.Errorf("find the kept configuration: %w", err)
			}
			env.Setenv("KEPT", kept)
			return setPorts(env, "DATA", "MANAGEMENT", "KAFKA")
		},
	})
}

// grown answers with an incident that has grown whenever somebody accepts it.
func grown(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"id":"0123456789ab","kind":"fold","topic":"flights","log":"us.flights","from":2,"to":9,"count":8,"since":"2026-11-30T12:00:00.000Z","state":"open"}`))
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusConflict)
	_, _ = w.Write([]byte(`{"code":"INCIDENT_CHANGED","title":"The incident has changed or has ended","status":409,"detail":"it has grown to offset 12 since; look at it again"}`))
}

// exits runs a program and checks its exact exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code program [args...]")
	}
	code := 0
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("run %s: %v", args[1], err)
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("exit code is %d, want %s", code, args[0])
	}
}

// eventually runs a program until it succeeds.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: eventually program [args...]")
	}
	deadline := time.Now().Add(time.Minute)
	for {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s did not succeed: %v", args[0], err)
		}
		ts.Check(sleep.For(context.Background(), 100*time.Millisecond))
	}
}

// setPorts finds ports that nobody listens on. All are held until the last is
// found, so that they differ.
func setPorts(env *testscript.Env, names ...string) error {
	for _, name := range names {
		l, err := listenAnywhere()
		if err != nil {
			return err
		}
		defer l.Close()
		env.Setenv("PORT_"+name, fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	}
	return nil
}

func canned(status string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(status)) })
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /v1/topics", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answerTopics)) })
	mux.HandleFunc("GET /v1/ownership", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"units":[{"unit":"air/eu","owner":null,"epoch":34,"state":"FENCED"},{"unit":"air/us","owner":"us","epoch":17,"state":"ACTIVE"}],"next":null,"end":true}`))
	})
	mux.HandleFunc("GET /v1/ownership/orphans", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(orphanPages[r.URL.Query().Get("unit")+" "+r.URL.Query().Get("from")]))
	})
	return mux
}

// orphanPages are the answers by unit and cursor.
var orphanPages = map[string]string{
	"air/eu ": `{"orphans":[{"dot":"eu/0/3/93","topic":"flights","key":{"type":"string","data":"DTW"},"id":"01a226bf-4970-7f11-8c02-1d2e3f405162",` +
		`"stamp":"01a226bf49700000","timestamp":"2026-11-29T10:00:00.123Z","epoch":18,"op":"put","instead":"us/0/3/94"}],"next":"x","end":false}`,
	"air/eu x": `{"orphans":[{"dot":"eu/0/3/95","topic":"flights","key":null,"id":null,"stamp":"01a226bf49700000","timestamp":"2026-11-29T10:00:01.000Z",` +
		`"epoch":null,"op":"del","instead":null}],"next":"y","end":true}`,
	"air/us ": `{"orphans":[],"next":"","end":true}`,
}

const answerOK = `{"version":"0.1.0","time":"2026-11-29T10:00:00.123Z","region":"us","instance":"us-0","mode":"solo","register":null,
"regions":[{"name":"us","id":1,"state":"UP","live_epoch":null,"kafka":"ok"},{"name":"eu","id":2,"state":"UP","live_epoch":null,"kafka":"unreachable","gateway":"gone","gateway_silent_seconds":45.2}],
"links":[{"name":"us-eu","from":"us","to":"eu","state":"running","topics":2,"lag_records":0,"lag_seconds":0,"copied":10329,"passed_batches":512,"opened_batches":40,"denied":41,"parked":[]},
{"name":"eu-us","from":"eu","to":"us","state":"failed","topics":2,"lag_records":null,"lag_seconds":null,"copied":0,"passed_batches":0,"opened_batches":0,"denied":0,"parked":[{"topic":"flights","partition":3,"reason":"gap at the source","since":"2026-11-29T10:00:00.123Z"}]}],
"units":[{"unit":"air/us","owner":"us","epoch":17,"state":"ACTIVE","lease_seconds":null,"orphans":0}],
"writes":[{"topic":"flights","seconds":300,"stored":1200,"p50_ms":2.26,"p99_ms":19.03,"refused":{"NOT_READY":3,"INVALID_RECORD":7}},{"topic":"github","seconds":300,"stored":0,"p50_ms":null,"p99_ms":null,"refused":{}}],
"frontiers":[{"topic":"flights","offsets":120,"partition":3,"origin":"us","held_by":"fold","region":"eu","since":"2026-11-29T08:00:00.000Z"},{"topic":"github","offsets":2,"partition":0,"origin":"us","held_by":"twin","region":null,"since":"2026-11-29T09:59:59.000Z"}],
"residency":{"state":"off"},"warnings":[],"member_of_a_later_version":1}
`

const answerTopics = `{"topics":[
{"name":"_geogate.control","role":"internal","partitions":1},
{"name":"eu.flights","role":"remote","partitions":6,"origin":"eu","of":"flights"},
{"name":"flights","role":"local","partitions":6,"domain":"air","kind":"entity","policy":"lww","links":[{"link":"us-eu","state":"included","rule":"include \"*\""},{"link":"us-ap","state":"excluded","rule":"exclude \"f*\""}]},
{"name":"flights.merged","role":"derived","partitions":6,"of":"flights","use":"merged"}],"next":null,"end":true}
`

// TestEnvironmentOfTests keeps the scripts honest: they set what they need.
func TestEnvironmentOfTests(t *testing.T) {
	env := newEnvironment([]string{"GEOGATE_HTTP__LISTEN=a=b", "HOME=/x", "GEOGATE_=", "GEOGATE_REGION"})
	if len(env) != 3 || env["HTTP__LISTEN"] != "a=b" {
		t.Errorf("environment is %v", env)
	}
	if _, err := os.Stat("testdata"); err != nil {
		t.Fatal(err)
	}
}
