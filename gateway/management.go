package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// livez says that the process answers; it asks nothing that the process depends
// on.
func (s *Server) livez(c *call) error { return c.send("text/plain; charset=utf-8", []byte("ok\n")) }

// probeTime bounds one probe, so that a readiness check answers within the time
// that whoever asks has.
const probeTime = 2 * time.Second

// askProbes asks the probes one after the other and gives each answer to note.
func askProbes(ctx context.Context, probes []Probe, note func(name string, err error)) {
	for _, p := range probes {
		bounded, cancel := context.WithTimeout(ctx, probeTime)
		note(p.Name, p.Ready(bounded))
		cancel()
	}
}

func noteUnready(b *strings.Builder, name string, err error) { fmt.Fprintf(b, "[-]%s %v\n", name, err) }

// readyz says whether this instance can serve: 200, or 503 with what cannot. With
// ?verbose every part is listed. With ?for=read what only writes need is left out, so that
// the loss of the ownership register takes no reads away.
func (s *Server) readyz(c *call) error {
	q, err := c.query("verbose", "for")
	if err != nil {
		return err
	}
	probes := s.deps.Probes
	switch purpose := q.Get("for"); {
	case purpose == "read":
		probes = slices.DeleteFunc(slices.Clone(probes), func(p Probe) bool { return p.Writes })
	case purpose != "" && purpose != "write":
		return invalid(codeMalformed, atParameter("for", "must be read or write"))
	}
	var all, bad strings.Builder
	note := func(name string, err error) {
		if err == nil {
			fmt.Fprintf(&all, "[+]%s ok\n", name)
			return
		}
		for _, b := range []*strings.Builder{&all, &bad} {
			noteUnready(b, name, err)
		}
	}
	askProbes(c.r.Context(), probes, note)
	if s.drain.isStopping() {
		note("gateway", fmt.Errorf("draining"))
	} else {
		note("gateway", nil)
	}
	if bad.Len() > 0 {
		h := c.w.Header()
		h.Set("Content-Type", "text/plain; charset=utf-8")
		h.Set("Cache-Control", "no-store")
		c.w.WriteHeader(http.StatusServiceUnavailable)
		text := bad.String()
		if q.Has("verbose") {
			text = all.String()
		}
		_, _ = c.w.Write([]byte(text))
		return nil
	}
	c.w.Header().Set("Cache-Control", "no-store")
	if q.Has("verbose") {
		return c.send("text/plain; charset=utf-8", []byte(all.String()))
	}
	return c.send("text/plain; charset=utf-8", []byte("ok\n"))
}

func (s *Server) configz(c *call) error {
	return c.send("text/plain; charset=utf-8", s.deps.Configz)
}

func (s *Server) status(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	st, err := s.deps.Status.Status(c.r.Context())
	if err != nil {
		return err
	}
	st.Writes = s.m.writes.status(time.Now())
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(st.complete()), '\n'))
}

func (s *Server) topics(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	list, err := s.deps.Topics.List(c.r.Context())
	if err != nil {
		return err
	}
	if list == nil {
		list = []TopicEntry{}
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(TopicList{Topics: list, End: true}), '\n'))
}
