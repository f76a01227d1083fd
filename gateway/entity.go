package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// entityByPath is GET /v1/topics/{topic}/entities/{key}.
func (s *Server) entityByPath(c *call) error {
	q, err := c.query("wait")
	if err != nil {
		return err
	}
	return s.entity(c, []byte(c.args[1]), q.Get("wait"))
}

// entityByQuery is GET /v1/topics/{topic}/entities?key=, for keys that a path
// cannot carry: the empty one, "." and "..".
func (s *Server) entityByQuery(c *call) error {
	q, err := c.query("key", "wait")
	if err != nil {
		return err
	}
	if !q.Has("key") {
		return invalid(codeMalformed, atParameter("key", "missing"))
	}
	return s.entity(c, []byte(q.Get("key")), q.Get("wait"))
}

func (s *Server) entity(c *call, key []byte, waitText string) error {
	_, stale, err := parseWait(waitText)
	if err != nil {
		return err
	}
	if _, err := c.accept(typeJSON); err != nil {
		return err
	}
	token, err := c.token(c.args[0])
	if err != nil {
		return err
	}
	ctx := c.r.Context()
	t, err := s.deps.Topics.Topic(ctx, c.args[0])
	if err != nil {
		return err
	}
	if t.Domain.Kind != conflict.Entities {
		return newProblem(codeEntityUnknown, "the topic is of kind %s and has no entities", t.Domain.Kind)
	}
	if t, err = s.applied(ctx, t, token, stale); err != nil {
		return err
	}
	return s.answerEntity(c, t, key, stale)
}

// answerEntity answers with the state of an entity, once its partition shows what there
// was before the seat, for which it waits for a time.
func (s *Server) answerEntity(c *call, t Topic, key []byte, stale time.Duration) error {
	ctx := c.r.Context()
	p := router.Partition(key, t.Partitions)
	st, err := s.seats.open(ctx, t, p)
	if err != nil {
		return err
	}
	if err := caughtUp(ctx, st, stale); err != nil {
		return err
	}
	room := c.room()
	defer room.release()
	shown := st.View()
	state, err := s.loadEntity(ctx, shown, key, &room)
	if err != nil {
		return err
	}
	// The token says what the answer may have seen, so it is taken after it.
	seen, _ := shown.Committed()
	h := c.w.Header()
	h.Set("Cache-Control", "no-cache")
	if t.Held != "" || !st.Complete() {
		setIncomplete(h, headerIncomplete, t.Name, p)
	}
	win := conflict.PolicyOf(t.Domain.Rule).Winner(state.Live)
	if win < 0 {
		h.Set(headerToken, s.readToken(t, p, seen, 0))
		return newProblem(codeEntityUnknown, "this key has no value")
	}
	winner := &state.Live[win].Event
	var stamp event.Stamp // that the next write has to exceed
	if winner.Stamped {
		stamp = winner.Stamp
	}
	h.Set(headerToken, s.readToken(t, p, seen, stamp))
	version := s.version(state.Live)
	if winner.Op == event.Delete {
		return newProblem(codeEntityUnknown, "the entity was deleted").with("version", version)
	}
	h.Set("ETag", `"`+version+`"`)
	if matches(c.r.Header.Values("If-None-Match"), version) {
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	live := slices.Clone(state.Live)
	if err := s.fillEntity(ctx, st, t, live, win, &room); err != nil {
		return err
	}
	body := make([]byte, 0, entityRoom*len(live)+len(key)+int(sizeOf(&conflict.State{Live: live})))
	return s.deliverEntity(c, &room, s.appendEntity(body, t, key, p, version, live, win))
}

// deliverEntity answers with an entity once there is room for it.
func (s *Server) deliverEntity(c *call, room *hold, body []byte) error {
	if err := room.resize(c.r.Context(), int64(len(body)), s.patience); err != nil {
		return err
	}
	return c.deliver(typeJSON, body)
}

// endedContext has ended: a wait that is given it only looks.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// caughtUp waits, for a time, until a seat's view shows what its topic held at the start.
func caughtUp(ctx context.Context, st Seat, atMost time.Duration) error {
	if st.CaughtUp(endedContext) == nil {
		return nil // mostly; a timer is not needed then
	}
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	return st.CaughtUp(ctx)
}

// loadEntity gives the state of an entity once there is room for it, for which a
// request waits before it has read anything.
func (s *Server) loadEntity(ctx context.Context, shown View, key []byte, room *hold) (conflict.State, error) {
	if err := room.resize(ctx, entityCopies*s.cfg.MaxRecord, s.patience); err != nil {
		return conflict.State{}, err
	}
	state, _, err := shown.Entity(ctx, key)
	if size := entityCopies * sizeOf(&state); err == nil && size > room.n {
		err = room.resize(ctx, size, s.patience)
	}
	return state, err
}

// fillEntity puts into live what the state had no room for, of the values that are shown:
// the log has it.
func (s *Server) fillEntity(ctx context.Context, st Seat, t Topic, live []conflict.Live, win int, room *hold) error {
	all := conflict.PolicyOf(t.Domain.Rule).ShowsSiblings
	var missing []int
	for i := range live {
		if live[i].Event.LeftOut && live[i].Event.Op != event.Delete && (all || i == win) {
			missing = append(missing, i)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := room.resize(ctx, room.n+entityCopies*s.cfg.MaxRecord*int64(len(missing)-1), s.patience); err != nil {
		return err
	}
	for _, i := range missing {
		ev, err := st.Fetch(ctx, live[i].Event.At)
		switch {
		case errors.Is(err, view.ErrGone):
			return newProblem(codeValueGone, "the value was too large for this region's state, and retention has deleted its record %s from the log; write the entity again",
				live[i].Event.At.Format(s.cfg.Topology)).with("version", s.version(live))
		case err != nil:
			return fmt.Errorf("%w: read a value from the log: %w", ErrUpstream, err)
		}
		live[i].Event.Value, live[i].Event.Headers, live[i].Event.LeftOut = ev.Value, ev.Headers, false
	}
	if size := entityCopies * sizeOf(&conflict.State{Live: live}); size > room.n {
		return room.resize(ctx, size, s.patience)
	}
	return nil
}

// entityCopies is how often the values of an entity are in memory until its answer
// is complete: as they were stored, and in the answer, where some take more.
const entityCopies = 3

// sizeOf is how many bytes the values of an entity have.
func sizeOf(state *conflict.State) (n int64) {
	for i := range state.Live {
		n += int64(len(state.Live[i].Event.Key) + len(state.Live[i].Event.Value))
	}
	return n
}

func (s *Server) readToken(t Topic, p int32, seen event.Vector, stamp event.Stamp) string {
	return event.Token{Topic: event.HashTopic(t.Name), Partition: p, Vector: seen, Stamp: stamp}.String()
}

// version names a state by its live dots, region ids descending.
func (s *Server) version(live []conflict.Live) string {
	const room = 48 // what a dot mostly takes at most
	b := make([]byte, 0, room*len(live))
	for i := range slices.Backward(live) {
		if len(b) > 0 {
			b = append(b, '+')
		}
		b = live[i].Event.At.AppendFormat(b, s.cfg.Topology)
	}
	return string(b)
}

// entityRoom is more than the body of an entity takes beside keys and values, and what each
// sibling takes.
const entityRoom = 512

// appendEntity appends the body of an entity: a pure function of its state. live is in
// ascending order of region ids, at most one of each.
func (s *Server) appendEntity(dst []byte, t Topic, key []byte, p int32, version string, live []conflict.Live, win int) []byte {
	w := &live[win].Event
	dst = appendString(append(dst, `{"topic":`...), t.Name)
	dst = appendKey(append(dst, `,"key":`...), key)
	dst = strconv.AppendInt(append(dst, `,"partition":`...), int64(p), 10)
	dst = appendString(append(dst, `,"version":`...), version)
	dst = appendValue(append(dst, `,"value":`...), w.Value)
	dst = s.appendParty(append(dst, ','), w)
	dst = appendTime(append(dst, `,"timestamp":"`...), w.Timestamp)
	policy := conflict.PolicyOf(t.Domain.Rule)
	dst = appendString(append(dst, `","policy":`...), policy.Name)
	dst = append(dst, `,"siblings":[`...)
	first := true
	for i := range slices.Backward(live) {
		if i == win {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		ev := &live[i].Event
		dst = s.appendParty(append(dst, '{'), ev)
		dst = append(append(append(dst, `,"op":"`...), ev.Op.String()...), '"')
		if policy.ShowsSiblings {
			dst = appendValue(append(dst, `,"value":`...), ev.Value)
		}
		dst = append(dst, '}')
	}
	return append(dst, "]}"...)
}

// appendParty appends the members that name a live value.
func (s *Server) appendParty(dst []byte, ev *event.Event) []byte {
	dst = ev.At.AppendFormat(append(dst, `"dot":"`...), s.cfg.Topology)
	dst = appendID(append(dst, `","id":`...), ev.ID)
	dst = appendString(append(dst, `,"region":`...), s.cfg.Topology.Name(ev.At.Region))
	dst = ev.Stamp.AppendHex(append(dst, `,"stamp":"`...))
	return append(dst, '"')
}

// matches tells whether If-None-Match names the version. A version is the same
// bytes, so weak and strong comparison are the same.
func matches(lines []string, version string) bool {
	for _, line := range lines {
		for tag := range strings.SplitSeq(line, ",") {
			tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
			if tag == "*" || tag == `"`+version+`"` {
				return true
			}
		}
	}
	return false
}
