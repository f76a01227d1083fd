package seat_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/testbench/script"
)

// TestScripts plays the scripts of testdata/script: each explains one protocol of a
// seat and shows, under every command, what the core of the seat asks for. With
// -rewrite the traces are written again.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/script", func(t *testing.T, trace *script.Trace) func(*testing.T, *script.Command) {
		s := newSeatScript(t)
		s.Trace = trace
		return s.run
	})
}

// seatScript is a desk whose effects are told in words.
type seatScript struct {
	*desk
	*script.Trace
	epoch int16 // of the newest barrier's producer
}

func newSeatScript(t *testing.T) *seatScript {
	s := &seatScript{desk: newDesk(t, seat.CoreConfig{})}
	s.seen = s.effect
	return s
}

func (s *seatScript) effect(e seat.Effect) {
	switch e := e.(type) {
	case seat.OpenTerm:
		s.Say("seat: write a barrier (attempt %d)", e.Attempt)
	case seat.ConfirmTerm:
		s.Say("seat: does the fold still hold the partition? It does")
	case seat.Produce:
		for _, x := range e.Records {
			env, _, _, err := event.Decode(x.Record.Headers)
			if err != nil {
				s.t.Fatal(err)
			}
			s.Say("seat: produce write %d: value %s, under the barrier at %d, stamp %s", x.Ref, x.Record.Value, env.Barrier, env.Stamp)
		}
	case seat.Replies:
		for _, r := range e.List {
			s.reply(&r)
		}
	case seat.Stop:
		s.Say("seat: stop, another instance has it")
	}
}

func (s *seatScript) reply(r *seat.Reply) {
	if r.Err != nil {
		s.Say("answer to write %d: %s", r.Ref, strings.ReplaceAll(r.Err.Error(), "seat: ", ""))
		return
	}
	how := "stored"
	if r.Answer.Replayed {
		how = "replayed: stored before"
	}
	s.Say("answer to write %d: %s at offset %d, stamp %s", r.Ref, how, r.Answer.At.Offset, r.Answer.Stamp)
}

func (s *seatScript) run(t *testing.T, c *script.Command) {
	s.t = t
	switch c.Cmd {
	case "write": // key=n value=v: a client sends a write
		key, value := 0, ""
		c.MaybeScanArgs(t, "key", &key)
		c.ScanArgs(t, "value", &value)
		s.desk.write(byte(key), value)
	case "barrier": // the transaction of the barrier that is wanted ends well
		if len(s.opens) == 0 {
			c.Fatalf(t, "no barrier is wanted")
		}
		attempt := s.opens[len(s.opens)-1]
		s.opens, s.epoch = nil, s.epoch+1
		s.Say("log: a commit marker at offset %d", s.barrier(103, s.epoch))
		s.step(seat.Opened{Attempt: attempt, Producer: 103, Epochs: []int16{s.epoch}})
	case "foreign-barrier": // another instance begins a term
		s.Say("log: a commit marker of another instance at offset %d", s.barrier(104, 0))
	case "land": // write=n: the broker appends what was produced
		s.Say("log: write %d at offset %d", ref(t, c), s.land(ref(t, c)))
	case "stored": // write=n: the broker says so
		s.step(seat.Produced{Refs: []uint64{ref(t, c)}})
	case "drop-answer": // write=n: the broker's answer is lost
		s.step(seat.Produced{Refs: []uint64{ref(t, c)}, Err: errors.New("connection lost")})
	case "read": // the seat reads its log to the end
		s.Say("seat: reads offsets %d to %d", s.desk.read, len(s.log)-1)
		s.readAll()
	case "wait": // time passes
		var d time.Duration
		for _, a := range c.CmdArgs {
			parsed, err := time.ParseDuration(a.Key)
			if err != nil {
				c.Fatalf(t, "%v", err)
			}
			d = parsed
		}
		s.now = s.now.Add(d)
		s.step(seat.Tick{})
	case "restart": // the process ends, and another begins on the same log
		old := s.sent
		s.desk.restart(seat.CoreConfig{})
		s.sent = old // what was produced may still land
	case "log":
		s.show()
	default:
		c.Fatalf(t, "no such command")
	}
}

// show tells the log with the verdict on every record.
func (s *seatScript) show() {
	judge := seat.NewLog(1, 0, seat.NoBarrier)
	for i, p := range s.log {
		if p.mark != nil {
			judge.Marker(int64(i), true)
			s.Say("%d: barrier", i)
			continue
		}
		ev, err := event.FromRecord(event.Dot{Region: 1, Offset: int64(i)}, p.rec.Timestamp, p.rec.Key, p.rec.Value, p.rec.Headers)
		verdict := "valid"
		if judge.Record(&ev, err) == judged.Void {
			verdict = "void"
		}
		s.Say("%d: value %s, under the barrier at %d: %s", i, ev.Value, ev.Barrier, verdict)
	}
}

func ref(t *testing.T, c *script.Command) uint64 {
	t.Helper()
	var n uint64
	c.ScanArgs(t, "write", &n)
	return n
}
