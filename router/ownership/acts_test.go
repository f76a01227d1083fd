package ownership

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReplacement: a server is replaced only if it is gone for good as far as anybody can
// tell, and if enough others run.
func TestReplacement(t *testing.T) {
	c := &Client{cfg: ClientConfig{Voters: 3, ServerID: func(name string) string { return "id of " + name }}}
	leader := Server{Name: "ctl-us", Leader: true, Current: true}
	follower := Server{Name: "ctl-eu", Current: true, Silent: 0.4}
	spare := Server{Name: "ctl-w2", Current: true, Silent: 0.4}
	gone := Server{Name: "ctl-w", Offline: true, Silent: 3600}
	with := func(s Server, set func(*Server)) Server { set(&s); return s }
	for name, tt := range map[string]struct {
		servers []Server
		lost    string
		why     string
	}{
		"lost":               {[]Server{leader, follower, gone, spare}, "ctl-w", ""},
		"known by its id":    {[]Server{leader, follower, with(gone, func(s *Server) { s.Name, s.ID = "", "id of ctl-w" }), spare}, "ctl-w", ""},
		"silent, not marked": {[]Server{leader, follower, with(gone, func(s *Server) { s.Offline = false }), spare}, "ctl-w", ""},
		"no spare":           {[]Server{leader, follower, gone}, "ctl-w", "of 3 servers that are needed only ctl-eu, ctl-us run"},
		"spare behind":       {[]Server{leader, follower, gone, with(spare, func(s *Server) { s.Current = false })}, "ctl-w", "only ctl-eu, ctl-us run"},
		"runs":               {[]Server{leader, follower, spare}, "ctl-eu", "ctl-eu runs; stop it first"},
		"leads":              {[]Server{leader, follower, spare}, "ctl-us", "ctl-us runs; stop it first"},
		"just stopped":       {[]Server{leader, follower, with(gone, func(s *Server) { s.Offline, s.Silent = false, 3 }), spare}, "ctl-w", "was heard of 3 s ago"},
		"unknown":            {[]Server{leader, follower, gone}, "ctl-x", "ctl-x is no server of the register; those are ctl-eu, ctl-us, ctl-w"},
	} {
		t.Run(name, func(t *testing.T) {
			lost, others, why := c.replacement(tt.servers, tt.lost)
			if tt.why != "" {
				if !strings.Contains(why, tt.why) {
					t.Errorf("says %q", why)
				}
				return
			}
			if why != "" || lost.runs() || !slices.Equal(others, []string{"ctl-eu", "ctl-us", "ctl-w2"}) {
				t.Errorf("%q: %+v, %v", why, lost, others)
			}
		})
	}
}

// cluster is a register's servers by hand.
type cluster struct {
	Register
	servers    []Server
	lostAnswer bool // of the removal
	copies     int
}

func (c *cluster) List(context.Context) ([]Server, error) { return c.servers, nil }

func (c *cluster) Remove(_ context.Context, name string) error {
	c.servers = slices.DeleteFunc(slices.Clone(c.servers), func(s Server) bool { return s.Name == name })
	c.copies = 3
	if c.lostAnswer {
		return errors.New("no answer")
	}
	return nil
}

func (c *cluster) Voters(context.Context) (all, reachable int, err error) { return 3, c.copies, nil }

// TestReplaceIsRepeated: a replacement whose answer was lost, or whose gateway has died,
// is asked for again and ends as the first would have.
func TestReplaceIsRepeated(t *testing.T) {
	servers := &cluster{copies: 2, lostAnswer: true, servers: []Server{
		{Name: "ctl-us", Leader: true, Current: true}, {Name: "ctl-eu", Current: true}, {Name: "ctl-w2", Current: true}, {Name: "ctl-w", Offline: true},
	}}
	c := &Client{reg: servers, log: slog.New(slog.DiscardHandler), cfg: ClientConfig{Voters: 3, Servers: servers, ServerID: func(name string) string { return "id of " + name }}}
	act := RegisterAct{Verb: RegisterReplace, Server: "ctl-w", Reason: "its disk is gone", DryRun: true}
	if p := c.Act(t.Context(), act); p.Code != ResultDone || len(servers.servers) != 4 || len(p.Steps) != 2 {
		t.Fatalf("dry run: %+v, and %d servers are left", p, len(servers.servers))
	}
	act.DryRun = false
	if p := c.Act(t.Context(), act); p.Code != ResultUnreachable || !strings.Contains(p.Detail, "ask again") {
		t.Fatalf("without an answer: %+v", p)
	}
	if p := c.Act(t.Context(), act); p.Code != ResultDone || !strings.Contains(p.Detail, "ctl-eu, ctl-us, ctl-w2") {
		t.Errorf("asked again: %+v", p)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	servers.copies = 2
	if p := c.Act(ctx, act); p.Code != ResultInProgress {
		t.Errorf("while a copy is on its way: %+v", p)
	}
	servers.servers = append(servers.servers, Server{Name: "ctl-x", Offline: true})
	if p := c.Act(t.Context(), act); p.Code != ResultPrecondition {
		t.Errorf("another one is lost: %+v", p)
	}
}
