package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/geogate/geogate/internal/event"
)

// page answers with one page: up to limit records, but at least one if there is
// one within the wait, however large. An error after the first part cuts the
// answer off.
func (f *feed) page(c *call, rd *reading, name string) error {
	ctx := c.r.Context()
	wait, cancel := context.WithTimeout(ctx, rd.wait)
	defer cancel()
	defer f.s.drain.onStop(cancel)() // nobody waits for a gateway that stops
	c.w.Header().Set("Cache-Control", "no-store")
	out := &parts{c: c, contentType: typeJSON}
	if rd.ndjson {
		out.contentType = typeNDJSON
	} else {
		out.buf = append(appendString([]byte{'{'}, name), ":["...)
	}
	n := 0
	for n < rd.limit && out.size() < maxPage {
		rec, err := f.read(ctx)
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
		if n > 0 && !rd.ndjson {
			out.buf = append(out.buf, ',')
		}
		if rd.ndjson {
			out.buf = append(append(out.buf, f.line(rec)...), '\n')
		} else {
			out.buf = append(append(out.buf, rec...), '}')
		}
		n++
		if err := out.flush(); err != nil {
			return err
		}
	}
	if !rd.ndjson {
		o := object{b: append(out.buf, ']')}
		o.str("next", f.view.cursor().String())
		o.bool("end", f.atEnd())
		out.buf = o.close()
	}
	return out.close()
}

// line makes a record a line of a stream: the record with the cursor after it.
func (f *feed) line(rec []byte) []byte {
	o := object{b: rec}
	o.str("cursor", f.view.cursor().String())
	return o.close()
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
	beat := time.Now().Add(s.cfg.Heartbeat)
	for {
		rec, err := f.read(ctx)
		if err == nil {
			err = c.write(append(f.line(rec), '\n'))
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
		case s.drain.isStopping() && c.r.Context().Err() == nil && ctx.Err() != nil:
			return nil // the end is clean: a reader goes on elsewhere with its cursor
		case c.r.Context().Err() != nil:
			return errGone
		default:
			return err
		}
	}
}

// beat sends a heartbeat. Its cursor has passed what the reader does not see.
func (f *feed) beat(ctx context.Context, c *call) error {
	if err := f.refresh(ctx); err != nil {
		return err
	}
	var o object
	o.bool("heartbeat", true)
	o.str("cursor", f.view.cursor().String())
	if err := c.write(append(o.close(), '\n')); err != nil {
		return err
	}
	_ = c.rc.Flush()
	return nil
}

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
		if event.IsReserved(h.Key) {
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
