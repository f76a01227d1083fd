package gateway

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
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
	topic  string       // "" is all topics, for the conflict feed
	token  *event.Token // what the client has seen; nil is not told
	view   event.View
	from   from
	limit  int
	wait   time.Duration // for a record, once the view has reached its end
	stale  time.Duration // for the view to cover token and cursor
	follow bool
	ndjson bool
	by     peer // whom it counts for
}

// decodeReading reads what a read of a topic's records asks for.
func (s *Server) decodeReading(c *call) (*reading, error) {
	q, err := c.query("view", "from", "limit", "wait", "follow")
	if err != nil {
		return nil, err
	}
	rd := &reading{topic: c.args[0], by: c.peer}
	offered := []string{typeJSON, typeNDJSON}
	switch q.Get("follow") {
	case "", "false":
	case "true":
		rd.follow, offered = true, offered[1:]
	default:
		return nil, invalid(codeMalformed, atParameter("follow", "must be true or false"))
	}
	media, err := c.accept(offered...)
	if err != nil {
		return nil, err
	}
	rd.ndjson = media == typeNDJSON
	if rd.token, err = c.token(rd.topic); err != nil {
		return nil, err
	}
	if rd.view, err = s.parseView(q.Get("view")); err != nil {
		return nil, err
	}
	if rd.limit, err = parseLimit(q.Get("limit")); err != nil {
		return nil, err
	}
	if rd.wait, rd.stale, err = parseWait(q.Get("wait")); err != nil {
		return nil, err
	}
	rd.from, err = s.parseFrom(q.Get("from"), rd.topic, rd.view)
	return rd, err
}

// decodeConflictReading reads what a read of the conflict feed asks for.
func (s *Server) decodeConflictReading(c *call) (*reading, error) {
	q, err := c.query("topic", "from", "limit")
	if err != nil {
		return nil, err
	}
	rd := &reading{topic: q.Get("topic"), view: event.ConflictView, by: c.peer}
	if q.Has("topic") && rd.topic == "" {
		return nil, invalid(codeMalformed, atParameter("topic", "must name a topic; leave the parameter out to read all topics"))
	}
	if rd.limit, err = parseLimit(q.Get("limit")); err != nil {
		return nil, err
	}
	if rd.from, err = s.parseFrom(q.Get("from"), rd.topic, rd.view); err != nil {
		return nil, err
	}
	_, err = c.accept(typeJSON)
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
		return 0, invalid(codeMalformed, atParameter("view", "must be merged, local or origin:<region>"))
	}
	id, ok := s.cfg.Topology.ID(name)
	if !ok {
		return 0, invalid(codeMalformed, atParameter("view", "no region of the deployment has this name"))
	}
	return event.OriginView(id), nil
}

func parseLimit(text string) (int, error) {
	if text == "" {
		return defaultLimit, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxLimit {
		return 0, invalid(codeMalformed, atParameter("limit", "must be a number from 1 to %d", maxLimit))
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
		return 0, 0, invalid(codeMalformed, atParameter("wait", "must be a duration from 0s to %s, for example 10s", maxWait))
	}
	return d, d, nil
}

// from is where a read begins: at the earliest record, the latest, or a cursor.
type from struct {
	given  bool
	latest bool
	cursor event.Cursor // if given
}

func invalidCursor(format string, args ...any) *problem {
	return invalid(codeCursorInvalid, atParameter("from", "not a cursor of this read: "+format, args...))
}

// parseFrom reads the parameter from of a read of a view. topic is "" for the
// conflict feed of all topics.
func (s *Server) parseFrom(text, topic string, view event.View) (from, error) {
	switch text {
	case "", "earliest":
		return from{}, nil
	case "latest":
		return from{latest: true}, nil
	}
	c, err := event.ParseCursor(text)
	switch {
	case err != nil:
		return from{}, invalidCursor("it is damaged, or neither earliest, latest nor a cursor of this version")
	case c.View != view:
		return from{}, invalidCursor("it belongs to another view")
	case c.Topic != event.HashTopic(topic):
		return from{}, invalidCursor("it belongs to another topic")
	case view == event.ConflictView && c.Visible != s.cfg.Region:
		return from{}, invalidCursor("it belongs to another region's feed")
	case s.cfg.Topology.Name(c.Visible) == "":
		return from{}, invalidCursor("its region is not in this deployment")
	}
	if err := s.checkEntries(&c); err != nil {
		return from{}, invalidCursor("%s", err)
	}
	return from{given: true, cursor: c}, nil
}

// checkEntries refuses entries that no cursor of the view can have, so that what
// uses the cursor need not ask again.
func (s *Server) checkEntries(c *event.Cursor) error {
	for p, v := range c.At {
		if p < 0 || p >= placeBit && c.View != event.MergedView {
			return fmt.Errorf("it names partition %d", p)
		}
		for r, point := range v {
			r := event.RegionID(r)
			switch {
			case point == (event.Point{}):
			case s.cfg.Topology.Name(r) == "":
				return fmt.Errorf("it names region %d, which is not in this deployment", r)
			case c.View == event.MergedView && p >= placeBit && r != c.Visible,
				c.View == event.ConflictView && r != c.Visible,
				c.View != event.MergedView && c.View != event.ConflictView && event.OriginView(r) != c.View:
				return fmt.Errorf("it names region %d, which this view does not have", r)
			}
		}
	}
	return nil
}
