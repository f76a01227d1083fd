package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
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
	out.begin = func() { f.setLacks(out) }
	if rd.ndjson {
		out.contentType = typeNDJSON
	} else {
		out.buf = append(appendString([]byte{'{'}, name), ":["...)
	}
	n := 0
	for n < rd.limit && out.size() < maxPage {
		before := len(out.buf)
		if n > 0 && !rd.ndjson {
			out.buf = append(out.buf, ',')
		}
		err := f.read(ctx, out)
		if errors.Is(err, errEnd) {
			out.buf = out.buf[:before]
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
			out.buf = f.endLine(out.buf)
		} else {
			out.buf = append(out.buf, '}')
		}
		n++
		if err := out.flush(); err != nil {
			return err
		}
	}
	f.setLacks(out)
	if !rd.ndjson {
		out.buf = append(f.view.appendCursor(append(out.buf, `],"next":"`...)), '"')
		out.buf = append(strconv.AppendBool(append(out.buf, `,"end":`...), f.atEnd()), '}')
	}
	return out.close()
}

// setLacks says in a header what the answer lacks or, once the header has left, in a trailer:
// a record whose event the log has lost is found only when it is read.
func (f *feed) setLacks(out *parts) {
	name := headerIncomplete
	if out.started {
		name = http.TrailerPrefix + headerIncomplete
	}
	setIncomplete(out.c.w.Header(), name, f.asked, f.view.lacks()...)
}

// endLine makes the record that was read last a line of a stream: the cursor follows it.
func (f *feed) endLine(dst []byte) []byte {
	return append(f.view.appendCursor(append(dst, `,"cursor":"`...)), "\"}\n"...)
}

// follow keeps the answer open: a line for each record as it comes, and a
// heartbeat in between, so that a reader knows a quiet stream from a dead one. It
// ends when the client goes or the server drains.
//
// Lines leave together for as long as the next record is there already.
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
	out := &parts{c: c, started: true, prompt: true}
	beat := time.Now().Add(s.cfg.Heartbeat)
	for {
		var err error
		if len(out.buf) == 0 {
			beat, err = f.beatWhenDue(ctx, c, beat)
		}
		if err == nil {
			err = f.follow(ctx, out, beat)
		}
		if err == nil {
			continue
		}
		if sent := out.flushAll(); sent != nil {
			return sent
		}
		switch {
		case s.drain.isStopping() && c.r.Context().Err() == nil && ctx.Err() != nil:
			f.setLacks(out)
			return nil // the end is clean: a reader goes on elsewhere with its cursor
		case c.r.Context().Err() != nil:
			return errGone
		}
		return err
	}
}

// follow takes the next record as a line of a stream, or waits for it until a heartbeat is
// due.
func (f *feed) follow(ctx context.Context, out *parts, beat time.Time) error {
	err := f.read(ctx, out)
	if err == nil {
		out.buf = f.endLine(out.buf)
		return out.flush()
	}
	if !errors.Is(err, errEnd) {
		return err
	}
	if err := out.flushAll(); err != nil {
		return err
	}
	until, cancel := context.WithDeadline(ctx, beat)
	defer cancel()
	if err = f.wait(until); until.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

// beatWhenDue sends a heartbeat if it is time, and tells when the next one is due.
func (f *feed) beatWhenDue(ctx context.Context, c *call, due time.Time) (next time.Time, err error) {
	now := time.Now()
	if now.Before(due) {
		return due, nil
	}
	return now.Add(f.s.cfg.Heartbeat), f.beat(ctx, c)
}

// beat sends a heartbeat. Its cursor has passed what the reader does not see.
func (f *feed) beat(ctx context.Context, c *call) error {
	if err := f.refresh(ctx); err != nil {
		return err
	}
	line := f.view.appendCursor([]byte(`{"heartbeat":true,"cursor":"`))
	if err := c.write(append(line, "\"}\n"...)); err != nil {
		return err
	}
	_ = c.rc.Flush()
	return nil
}
