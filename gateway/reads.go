package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

const (
	defaultLimit = 100
	maxLimit     = 10_000
	maxPage      = 8 << 20          // bytes of the records of one answer, the first one apart
	defaultWait  = 10 * time.Second // for a token or cursor to be covered
	maxWait      = time.Minute
)

// reading is what a read of records was asked for.
type reading struct {
	view   event.View
	from   from
	limit  int
	wait   time.Duration // for a record, once the view has reached its end
	stale  time.Duration // for the view to cover token and cursor
	follow bool
	ndjson bool
}

// readRecords is GET /v1/topics/{topic}/records.
func (s *Server) readRecords(c *call) error {
	rd, err := s.parseReading(c)
	if err != nil {
		return err
	}
	token, err := c.token(c.args[0])
	if err != nil {
		return err
	}
	t, err := s.deps.Topics.Topic(c.r.Context(), c.args[0])
	if err != nil {
		return err
	}
	ctx := c.r.Context()
	if token != nil {
		if err := s.applied(ctx, t, token, rd.stale); err != nil {
			return err
		}
	}
	f, err := s.openFeed(ctx, rd.stale, func(wait context.Context) (judge, error) {
		switch {
		case rd.view == event.MergedView:
			return s.newMerged(ctx, wait, t, rd.from)
		case rd.view == event.OriginView(s.cfg.Region):
			return s.newOwnLog(t, rd.from), nil
		}
		return s.newRemoteLog(t, event.RegionID(rd.view), rd.from), nil
	})
	if err != nil {
		return err
	}
	defer f.close()
	if rd.follow {
		return s.follow(c, f)
	}
	return f.page(c, rd, "records")
}

func (s *Server) parseReading(c *call) (*reading, error) {
	q, err := c.query("view", "from", "limit", "wait", "follow")
	if err != nil {
		return nil, err
	}
	rd := &reading{}
	if rd.view, err = s.parseView(q.Get("view")); err != nil {
		return nil, err
	}
	if rd.limit, err = parseLimit(q.Get("limit")); err != nil {
		return nil, err
	}
	if rd.wait, rd.stale, err = parseWait(q.Get("wait")); err != nil {
		return nil, err
	}
	switch q.Get("follow") {
	case "", "false":
	case "true":
		rd.follow = true
	default:
		return nil, wrong(Malformed, atParameter("follow", "want true or false"))
	}
	if rd.from, err = s.parseFrom(q.Get("from"), c.args[0], rd.view); err != nil {
		return nil, err
	}
	offered := []string{typeJSON, typeNDJSON}
	if rd.follow {
		offered = offered[1:]
	}
	media, err := c.accept(offered...)
	rd.ndjson = media == typeNDJSON
	return rd, err
}

// parseView reads the parameter view. local is another word for the own region.
func (s *Server) parseView(text string) (event.View, error) {
	switch text {
	case "", "merged":
		return event.MergedView, nil
	case "local":
		return event.OriginView(s.cfg.Region), nil
	}
	name, ok := strings.CutPrefix(text, "origin:")
	if !ok {
		return 0, wrong(Malformed, atParameter("view", "want merged, local or origin:<region>"))
	}
	id, ok := s.cfg.Topology.ID(name)
	if !ok {
		return 0, wrong(Malformed, atParameter("view", "no region of the deployment has this name"))
	}
	return event.OriginView(id), nil
}

func parseLimit(text string) (int, error) {
	if text == "" {
		return defaultLimit, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxLimit {
		return 0, wrong(Malformed, atParameter("limit", "want a number from 1 to %d", maxLimit))
	}
	return n, nil
}

// parseWait reads the parameter wait: how long to wait at the end of the view
// (not at all unless asked for), and for the view to cover what the client has
// seen.
func parseWait(text string) (atEnd, stale time.Duration, err error) {
	if text == "" {
		return 0, defaultWait, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxWait {
		return 0, 0, wrong(Malformed, atParameter("wait", "want a duration from 0s to %s, like 10s", maxWait))
	}
	return d, d, nil
}

// applied waits until this region has applied what a token has seen.
func (s *Server) applied(ctx context.Context, t Topic, token *event.Token, wait time.Duration) error {
	if token.Partition >= t.Partitions {
		return wrong(Malformed, atHeader(headerToken, "the token names partition %d, the topic has %d", token.Partition, t.Partitions))
	}
	st, err := s.seats.open(ctx, t, token.Partition)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return await(ctx, st.View(), token.Vector)
}

// openFeed opens a view, and waits for this region to cover the cursor.
func (s *Server) openFeed(ctx context.Context, stale time.Duration, open func(context.Context) (judge, error)) (*feed, error) {
	wait, cancel := context.WithTimeout(ctx, stale)
	defer cancel()
	for {
		changed := s.deps.Logs.Changed()
		j, err := open(wait)
		if err != nil {
			return nil, err
		}
		// Listing is not what the client's patience is for.
		f, err := s.newFeed(ctx, j)
		if !errors.Is(err, ErrStale) {
			return f, err
		}
		t := time.NewTimer(retryEvery)
		select {
		case <-t.C:
		case <-changed:
		case <-wait.Done():
			t.Stop()
			return nil, err
		}
		t.Stop()
	}
}

// page answers with one page: up to limit records, but at least one if there is
// one within the wait, however large.
func (f *feed) page(c *call, rd *reading, name string) error {
	ctx := c.r.Context()
	wait, cancel := context.WithTimeout(ctx, rd.wait)
	defer cancel()
	defer f.s.drain.onStop(cancel)() // nobody waits for a gateway that stops
	var body []byte
	n := 0
	for n < rd.limit && len(body) < maxPage {
		rec, err := f.one(ctx)
		if errors.Is(err, errEnd) {
			if n == 0 && wait.Err() == nil {
				if err := f.wait(wait); err != nil && wait.Err() == nil {
					return err
				}
				continue
			}
			break
		}
		if err != nil {
			return err
		}
		if rd.ndjson {
			body = append(f.line(body, rec), '\n')
		} else {
			if n > 0 {
				body = append(body, ',')
			}
			body = append(append(body, rec...), '}')
		}
		n++
	}
	c.w.Header().Set("Cache-Control", "no-store")
	if rd.ndjson {
		return c.send(typeNDJSON, body)
	}
	var o object
	o.raw(name, append(append([]byte{'['}, body...), ']'))
	o.str("next", f.j.cursor().String())
	o.bool("end", f.atEnd())
	return c.send(typeJSON, o.close())
}

// line appends a record of a stream: the record with the cursor behind it.
func (f *feed) line(dst, rec []byte) []byte {
	o := object{b: rec}
	o.str("cursor", f.j.cursor().String())
	return append(dst, o.close()...)
}

// follow keeps the answer open: a line for each record as it comes, and a
// heartbeat in between, so that a reader knows a quiet stream from a dead one. It
// ends when the client goes or the server drains.
func (s *Server) follow(c *call, f *feed) error {
	h := c.w.Header()
	h.Set("Content-Type", typeNDJSON)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	c.w.WriteHeader(http.StatusOK)
	_ = c.rc.Flush()
	if c.r.Method == http.MethodHead {
		return nil
	}
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	defer s.drain.onStop(cancel)()
	var buf []byte
	beat := time.Now().Add(s.cfg.Heartbeat)
	for {
		rec, err := f.one(ctx)
		if err == nil {
			buf = append(f.line(buf[:0], rec), '\n')
			err = c.stream(buf)
		} else if errors.Is(err, errEnd) {
			_ = c.rc.Flush()
			until, cancel := context.WithDeadline(ctx, beat)
			err = f.wait(until)
			cancel()
			if until.Err() != nil && ctx.Err() == nil {
				err = nil
			}
		}
		if err == nil && !time.Now().Before(beat) {
			beat = time.Now().Add(s.cfg.Heartbeat)
			err = f.beat(ctx, c)
		}
		switch {
		case err == nil:
		case s.drain.stopping() && c.r.Context().Err() == nil && ctx.Err() != nil:
			return nil // the end is clean: a reader goes on elsewhere with its cursor
		case c.r.Context().Err() != nil:
			return errGone
		default:
			return err
		}
	}
}

// beat sends a heartbeat. Its cursor passes what holds no record for the reader.
func (f *feed) beat(ctx context.Context, c *call) error {
	if err := f.refresh(ctx); err != nil {
		return err
	}
	var o object
	o.bool("heartbeat", true)
	o.str("cursor", f.j.cursor().String())
	if err := c.stream(append(o.close(), '\n')); err != nil {
		return err
	}
	_ = c.rc.Flush()
	return nil
}

// stream writes a part of an answer that goes on.
func (c *call) stream(b []byte) error {
	c.writeDeadline(answerTime)
	if _, err := c.w.Write(b); err != nil {
		return errGone
	}
	return nil
}

func stampOf(ms int64) hlc.Stamp { return hlc.FromMillis(ms) }

// appendRecord appends the members of a record as all views show it: in the
// coordinates of its origin, and such that it can be written again once its
// read-only members are dropped.
func (s *Server) appendRecord(o *object, topic string, ev *event.Event) {
	o.str("topic", topic)
	o.str("region", s.cfg.Topology.Name(ev.At.Region))
	o.int("partition", int64(ev.At.Partition))
	o.int("offset", ev.At.Offset)
	o.uint("incarnation", uint64(ev.At.Incarnation))
	o.str("dot", ev.At.Format(s.cfg.Topology))
	o.id("id", ev.ID)
	o.str("stamp", ev.Stamp.String())
	o.str("timestamp", formatTime(ev.Timestamp))
	o.str("op", ev.Op.String())
	o.name("key")
	o.b = appendKey(o.b, ev.Key)
	o.name("value")
	o.b = appendValue(o.b, ev.Value)
	o.name("headers")
	o.b = append(o.b, '[')
	first := true
	for _, h := range ev.Headers {
		if _, reserved := event.Reserved([]event.Header{h}); reserved {
			continue // of a later version of the envelope
		}
		if !first {
			o.b = append(o.b, ',')
		}
		first = false
		o.b = appendHeader(o.b, h)
	}
	o.b = append(o.b, ']')
}

func appendHeader(dst []byte, h event.Header) []byte {
	name := h.Key
	if !utf8.ValidString(name) {
		name = strings.ToValidUTF8(name, "\uFFFD")
	}
	dst = appendString(append(dst, `{"name":`...), name)
	dst = append(dst, `,"value":`...)
	if h.Value == nil {
		dst = append(dst, "null"...)
	} else {
		dst = appendBase64(dst, h.Value)
	}
	return append(dst, '}')
}
