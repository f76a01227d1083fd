package gateway

import (
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// from is where a read begins: at the earliest record, the latest, or a cursor.
type from struct {
	given  bool
	latest bool
	cursor event.Cursor // if given
}

func invalidCursor(format string, args ...any) *Problem {
	return wrong(CursorInvalid, atParameter("from", "not a cursor of this read: "+format, args...))
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
		return from{}, invalidCursor("it comes from a region that is not of this deployment")
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
				return fmt.Errorf("it names region %d, which is not of this deployment", r)
			case c.View == event.MergedView && p >= placeBit && r != c.Visible,
				c.View == event.ConflictView && r != c.Visible,
				c.View != event.MergedView && c.View != event.ConflictView && event.OriginView(r) != c.View:
				return fmt.Errorf("it names region %d, which this view does not have", r)
			}
		}
	}
	return nil
}
