package world_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/world"
)

// operations is how many client operations a schedule has.
const operations = 120

// schedule drives a world through writes, retries and faults drawn from a seed.
// The draw is a function of the seed alone, except that it does not know how an
// operation will end; which interleaving results is the machine's.
type schedule struct {
	t   *testing.T
	w   *world.World
	rnd *rand.Rand

	faults int
	down   map[string]bool   // regions whose instance was killed
	heal   map[string]int    // steps until a fault is taken back, by what it is
	undo   map[string]func() // how
	order  []*attempts
}

// attempts are all tries of one request with one idempotency key, or the only try
// of one without.
type attempts struct {
	wr    client.Write
	mu    sync.Mutex
	acked []client.Answer
}

func (a *attempts) ack(answer client.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.acked = append(a.acked, answer)
}

func TestRandomScheduleOfTwoRegions(t *testing.T)   { randomSchedule(t, 2, operations) }
func TestRandomScheduleOfThreeRegions(t *testing.T) { randomSchedule(t, 3, operations/3) }

func randomSchedule(t *testing.T, regions, operations int) {
	t.Parallel()
	seed := rand.Uint64()
	if text := os.Getenv("GEOGATE_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("GEOGATE_SEED: %v", err)
		}
		seed = n
	}
	t.Logf("seed %d; run it again with GEOGATE_SEED=%d", seed, seed)
	s := &schedule{
		// The topic of events is there before geogate, for producers of its own.
		w: world.Start(t, world.Options{Regions: regions, Topics: []world.Topic{{Name: github, Partitions: 2}}}),
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)),
		down: make(map[string]bool), heal: make(map[string]int), undo: make(map[string]func()),
	}
	for done := 0; done < operations; {
		s.fault()
		n := 1 + s.rnd.IntN(8)
		s.batch(n)
		done += n
	}
	s.end()
	s.check()
}

// fault takes back faults whose time has come and perhaps adds one.
func (s *schedule) fault() {
	for what, left := range s.heal {
		if s.heal[what]--; left <= 1 {
			s.w.Note("fault ends", "what", what)
			s.undo[what]()
			delete(s.heal, what)
			delete(s.undo, what)
		}
	}
	draw, region, other, steps := s.rnd.IntN(100), s.region(), s.region(), 1+s.rnd.IntN(5)
	switch {
	case draw < 40 && region != other:
		s.add("link "+region+" "+other, steps, func() { s.w.Cut(region, other) }, func() { s.w.Heal(region, other) })
	case draw < 50 && !s.down[region]:
		in := s.w.Region(region).Instance(0)
		var keep func()
		s.add("answers "+region, 1, func() { keep = in.LoseAnswers(produceKey) }, func() { keep() })
	case draw < 60:
		deleted, stop := draw < 55, s.w.Kill
		if draw%2 == 0 {
			stop = s.w.Stop
		}
		s.add("gateway "+region, min(steps, 2), func() {
			s.down[region] = true
			stop(region)
			if deleted {
				s.w.DeleteStore(region)
			}
		}, func() {
			s.w.StartAgain(region)
			delete(s.down, region)
		})
	}
}

// add begins a fault unless it is there already.
func (s *schedule) add(what string, steps int, begin, end func()) {
	if _, there := s.heal[what]; there {
		return
	}
	s.w.Note("fault begins", "what", what, "steps", steps)
	begin()
	s.faults++
	s.heal[what], s.undo[what] = steps, end
}

func (s *schedule) draw(from ...string) string { return from[s.rnd.IntN(len(from))] }

func (s *schedule) region() string { return s.w.Regions()[s.rnd.IntN(len(s.w.Regions()))].Name }

// batch sends n requests at the same time and waits for their answers.
func (s *schedule) batch(n int) {
	s.w.Note("batch", "requests", n)
	var all sync.WaitGroup
	for range n {
		if s.rnd.IntN(20) == 0 {
			s.native()
			continue
		}
		a, region := s.next()
		if region == "" {
			continue
		}
		r := s.w.Region(region)
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			if answer, err := r.Try(ctx, a.wr); err == nil {
				a.ack(answer)
			}
		})
	}
	all.Wait()
}

// native writes an event past the gateway, as producers may on topics of events.
func (s *schedule) native() {
	rec := &kgo.Record{Topic: github, Partition: s.rnd.Int32N(2), Value: fmt.Appendf(nil, `"native %d"`, len(s.order))}
	if err := s.w.Region(s.region()).Produce(limit(s.t), rec); err != nil {
		s.t.Fatal(err)
	}
}

// next draws a request, new or a retry, and where it goes; "" if nothing is up
// there.
func (s *schedule) next() (*attempts, string) {
	region := s.region()
	if s.down[region] {
		return nil, ""
	}
	if len(s.order) > 0 && s.rnd.IntN(3) == 0 {
		// Recent requests are retried more often than old ones.
		back := min(len(s.order), 1+s.rnd.IntN(1+s.rnd.IntN(30)))
		if a := s.order[len(s.order)-back]; a.wr.Idem != "" {
			return a, region
		}
	}
	number := len(s.order)
	topic := s.draw(flights, flights, notes, github)
	key := fmt.Sprintf("k%d", s.rnd.IntN(map[string]int{flights: 5, notes: 2, github: 3}[topic]))
	wr := client.Write{Topic: topic, Key: key, Value: fmt.Appendf(nil, `{"n":%d}`, number)}
	if s.rnd.IntN(8) == 0 && topic != github {
		wr.Value = nil
	}
	if s.rnd.IntN(4) > 0 {
		wr.Idem = fmt.Sprintf("i%d", number)
	}
	a := &attempts{wr: wr}
	s.order = append(s.order, a)
	return a, region
}

// end takes every fault back, asks for the true result of every keyed request
// that has none, as careful clients do, and lets the world come to rest.
func (s *schedule) end() {
	for _, undo := range s.undo {
		undo()
	}
	for _, a := range s.order {
		if a.wr.Idem != "" && len(a.acked) == 0 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			answer, err := s.w.Region(s.region()).Store(ctx, a.wr)
			cancel()
			if err != nil {
				s.t.Fatalf("ask for the result of %s: %v", a.wr.Idem, err)
			}
			a.acked = append(a.acked, answer)
		}
	}
	s.w.Settle()
	acked := 0
	for _, a := range s.order {
		acked += min(len(a.acked), 1)
	}
	s.t.Logf("%d requests, %d of them acknowledged, %d faults", len(s.order), acked, s.faults)
	if acked < len(s.order)/2 || s.faults == 0 {
		s.t.Fatal("the schedule tells nothing: too few writes were acknowledged, or too few faults happened")
	}
}
