package gateway

import (
	"github.com/geogate/geogate/internal/event"
)

// viewCursor is the cursor of a view while it is read. The lines of a stream have one each,
// so it looks only at the partitions that have moved since the one before.
type viewCursor struct {
	w *event.CursorWriter
	// moved are the partitions whose place is another than that which w has.
	moved map[int32]bool
	last  int32 // one of moved, if there are any
}

func newViewCursor(view event.View, topic string, visible event.RegionID) viewCursor {
	return viewCursor{w: event.NewCursorWriter(view, event.HashTopic(topic), visible), moved: make(map[int32]bool)}
}

// move says that a partition's place is another.
func (c *viewCursor) move(p int32) {
	if p != c.last || len(c.moved) == 0 {
		c.moved[p], c.last = true, p
	}
}

// append appends the cursor; place sets those of a partition.
func (c *viewCursor) append(dst []byte, place func(w *event.CursorWriter, p int32)) []byte {
	for p := range c.moved {
		place(c.w, p)
	}
	clear(c.moved)
	return c.w.Append(dst)
}
