package ownership_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/register"
	"github.com/geogate/geogate/testbench/natscluster"
)

// A history of the register as its clients saw it, held against what a register
// of one revision per region may do.

// attempt is what a client asked for: a write of a region's record, or of
// something that hangs on it, on condition of the record's revision.
type attempt struct {
	id     string
	region int
	record bool
	expect uint64
}

// outcome is what became of it, after all tries with the same message id.
type outcome struct {
	is  ownership.Outcome
	seq uint64
}

// oneRevision is the model: each region's record has one revision, a record
// replaces it, a renewal only looks at it.
var oneRevision = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := make(map[int][]porcupine.Operation)
		for _, o := range history {
			region := o.Input.(attempt).region
			by[region] = append(by[region], o)
		}
		var out [][]porcupine.Operation
		for _, ops := range by {
			out = append(out, ops)
		}
		return out
	},
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		rev, in, out := state.(uint64), input.(attempt), output.(outcome)
		switch {
		case out.is == ownership.Conflict:
			return rev != in.expect, rev
		case rev != in.expect || out.seq <= rev:
			return false, rev
		case in.record:
			return true, out.seq
		}
		return true, rev
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}

// TestHistoryModel: the judge refuses what no register can have done.
func TestHistoryModel(t *testing.T) {
	op := func(call, back int64, record bool, expect uint64, is ownership.Outcome, seq uint64) porcupine.Operation {
		return porcupine.Operation{Call: call, Return: back, Input: attempt{record: record, expect: expect}, Output: outcome{is, seq}}
	}
	for name, tt := range map[string]struct {
		ok  bool
		ops []porcupine.Operation
	}{
		"one after the other": {true, []porcupine.Operation{op(0, 1, true, 0, ownership.Stored, 1), op(2, 3, false, 1, ownership.Stored, 2), op(4, 5, true, 1, ownership.Stored, 3)}},
		"an unknown outcome that came late": {true, []porcupine.Operation{
			op(0, math.MaxInt64, true, 0, ownership.Stored, 2), op(1, 2, true, 1, ownership.Conflict, 0), op(3, 4, true, 2, ownership.Stored, 3),
		}},
		"two owners":                  {false, []porcupine.Operation{op(0, 1, true, 0, ownership.Stored, 1), op(2, 3, true, 0, ownership.Stored, 2)}},
		"a renewal after the fence":   {false, []porcupine.Operation{op(0, 1, true, 0, ownership.Stored, 1), op(2, 3, true, 1, ownership.Stored, 2), op(4, 5, false, 1, ownership.Stored, 3)}},
		"a refusal without reason":    {false, []porcupine.Operation{op(0, 1, true, 0, ownership.Stored, 1), op(2, 3, false, 1, ownership.Conflict, 0)}},
		"a sequence that went back":   {false, []porcupine.Operation{op(0, 1, true, 0, ownership.Stored, 5), op(2, 3, true, 5, ownership.Stored, 4)}},
		"forgotten by another server": {false, []porcupine.Operation{op(0, 1, true, 0, ownership.Stored, 1), op(2, 3, true, 1, ownership.Stored, 2), op(4, 5, true, 1, ownership.Stored, 3)}},
	} {
		if got := porcupine.CheckOperations(oneRevision, tt.ops); got != tt.ok {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// teller is one client of the register in a history.
type teller struct {
	n      int
	reg    *register.Register
	dialer *natscluster.Dialer
	rnd    *rand.Rand
	known  map[int]uint64
	ops    []porcupine.Operation
	counts map[string]int
	told   *told
}

// told is what all clients of a history have done so far.
type told struct{ stored, conflicts atomic.Int64 }

// enough tells whether a history says something of the register.
func (o *told) enough() bool { return o.stored.Load() >= 50 && o.conflicts.Load() >= 20 }

const (
	tellers = 6
	// historyRegions and the pauses keep the revisions of every subject below what
	// the register keeps, so that the whole log can be read at the end.
	historyRegions = 24
	tryTime        = 300 * time.Millisecond
	tries          = 4
	// mostMore is how much longer than it should a history may take.
	mostMore = time.Minute
)

func region(n int) string { return fmt.Sprintf("r%d", n) }

// tell makes conditional writes until the context ends.
func (c *teller) tell(ctx context.Context, began time.Time) {
	for i := 0; ctx.Err() == nil; i++ {
		in := attempt{id: fmt.Sprintf("c%d-%d", c.n, i), region: c.rnd.IntN(historyRegions), record: c.rnd.IntN(3) == 0}
		in.expect = c.known[in.region]
		if c.rnd.IntN(6) == 0 {
			in.expect /= 2 // stale: no record of the region has it any more
		}
		w := ownership.Write{ID: in.id, Subject: ownership.RegionSubject(region(in.region)), Data: []byte(in.id), Guard: ownership.RegionSubject(region(in.region)), Expect: in.expect}
		if !in.record {
			w.Subject = ownership.LeaseSubject(region(in.region), fmt.Sprint(c.n))
		}
		call := time.Since(began).Nanoseconds()
		out := c.settle(ctx, w)
		op := porcupine.Operation{ClientId: c.n, Input: in, Call: call, Output: out, Return: time.Since(began).Nanoseconds()}
		switch out.is {
		case ownership.Stored:
			c.counts["stored"]++
			c.told.stored.Add(1)
			if in.record {
				c.known[in.region] = out.seq
			}
		case ownership.Conflict:
			c.counts["conflicts"]++
			c.told.conflicts.Add(1)
			if s, ok := c.reg.Read(context.WithoutCancel(ctx), w.Guard); ok { // a hint, perhaps a stale one
				c.known[in.region] = s.Seq
			}
		default:
			c.counts["unknown"]++
			op.Return = math.MaxInt64
		}
		c.ops = append(c.ops, op)
		pause(ctx, time.Duration(5+c.rnd.IntN(40))*time.Millisecond)
	}
}

// settle tries a write with one message id until its outcome is known, or for so
// long.
func (c *teller) settle(ctx context.Context, w ownership.Write) outcome {
	for try := 0; try < tries; try++ {
		is, seq := c.reg.Write(context.WithoutCancel(ctx), w)
		switch is {
		case ownership.Stored, ownership.Conflict:
			if try > 0 {
				c.counts["settled by a retry"]++
			}
			return outcome{is, seq}
		case ownership.Busy:
			c.counts["busy"]++
		}
		pause(context.WithoutCancel(ctx), time.Duration(1+c.rnd.IntN(20))*time.Millisecond)
	}
	return outcome{is: ownership.Unknown}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// seedOf is the seed of a history, printed so that it can be played again.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano() % 1e9)
	if s := os.Getenv("GEOGATE_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("GEOGATE_SEED=%d", seed)
	return seed
}

func startCluster(t testing.TB) *natscluster.Cluster {
	t.Helper()
	c, err := natscluster.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// dial opens the register for a client of some servers.
func dial(t testing.TB, c *natscluster.Cluster, timeout time.Duration, among ...int) (*register.Register, *natscluster.Dialer) {
	t.Helper()
	d := c.Dialer(among...)
	r, err := register.Dial(register.Config{Dialer: d, Name: "history", Replicas: natscluster.Size, Timeout: timeout, Logger: slog.New(slog.DiscardHandler)}, ownership.Handlers{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	until(t, patience, "open register", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := r.Open(ctx)
		return err == nil
	})
	return r, d
}

// TestRegisterHistory: what clients of the real adapter saw of three real servers
// under faults is what one register could have done.
func TestRegisterHistory(t *testing.T) {
	t.Parallel()
	t.Run("handover", func(t *testing.T) {
		t.Parallel()
		history(t, 10*time.Second, func(h *harm) {
			h.restart(true)
			for h.ctx.Err() == nil {
				h.awaitLeader()
				switch h.rnd.IntN(3) {
				case 0:
					h.stepDown()
					h.stepDown() // within the same write
				case 1:
					h.loseAnswers()
				case 2:
					h.cutFollower()
				}
				pause(h.ctx, time.Duration(200+h.rnd.IntN(300))*time.Millisecond)
			}
		})
	})
	t.Run("loss", func(t *testing.T) {
		t.Parallel()
		if testing.Short() {
			t.Skip("elections take 4 to 9 s each")
		}
		history(t, 26*time.Second, func(h *harm) {
			h.cutLeader(10 * time.Second)
			h.awaitLeader()
			h.loseAnswers()
			h.restart(false)
			h.awaitLeader()
			h.stepDown()
			h.awaitLeader()
			h.deafenLeader(2 * time.Second)
			pause(h.ctx, time.Second)
		})
	})
}

// harm does to a cluster and its clients what a history is about.
type harm struct {
	t       *testing.T
	ctx     context.Context
	c       *natscluster.Cluster
	tellers []*teller
	rnd     *rand.Rand
	did     map[string]int
}

func (h *harm) leader() int { return h.c.Leader(streamName) }

// awaitLeader waits until the register takes writes again, or the history ends.
func (h *harm) awaitLeader() {
	for h.leader() < 0 && h.ctx.Err() == nil {
		pause(h.ctx, 20*time.Millisecond)
	}
}

func (h *harm) stepDown() {
	if i := h.leader(); i >= 0 && h.c.Server(i).StepDown(streamName) == nil {
		h.did["step down"]++
	}
}

func (h *harm) loseAnswers() {
	d := h.tellers[h.rnd.IntN(len(h.tellers))].dialer
	d.Deafen()
	pause(h.ctx, 500*time.Millisecond)
	d.Break()
	h.did["lost answers"]++
}

func (h *harm) cutFollower() {
	lead := h.leader()
	if lead < 0 {
		return
	}
	i := (lead + 1 + h.rnd.IntN(2)) % natscluster.Size
	h.c.Isolate(i)
	pause(h.ctx, time.Duration(h.rnd.IntN(900))*time.Millisecond)
	h.c.Rejoin(i)
	h.did["cut follower"]++
}

func (h *harm) cutLeader(d time.Duration) {
	if i := h.leader(); i >= 0 {
		h.c.Isolate(i)
		pause(h.ctx, d)
		h.c.Rejoin(i)
		h.did["cut leader"]++
	}
}

func (h *harm) deafenLeader(d time.Duration) {
	if i := h.leader(); i >= 0 {
		h.c.Deafen(i)
		pause(h.ctx, d)
		h.c.Rejoin(i)
		h.did["deaf leader"]++
	}
}

func (h *harm) restart(warning bool) {
	i := h.leader()
	if i < 0 {
		return
	}
	if err := h.c.Stop(i, warning); err != nil {
		h.t.Error(err)
	}
	pause(h.ctx, 300*time.Millisecond)
	if err := h.c.Restart(i); err != nil {
		h.t.Error(err)
	}
	h.did[map[bool]string{true: "stop and restart", false: "abrupt stop and restart"}[warning]]++
}

// history plays faults against clients for a time and judges what they saw.
func history(t *testing.T, length time.Duration, faults func(*harm)) {
	seed := seedOf(t)
	c := startCluster(t)
	var sum told
	h := &harm{t: t, c: c, rnd: rand.New(rand.NewPCG(seed, 0)), did: make(map[string]int)}
	for n := range tellers {
		r, d := dial(t, c, tryTime, n%natscluster.Size)
		h.tellers = append(h.tellers, &teller{
			n: n, reg: r, dialer: d, rnd: rand.New(rand.NewPCG(seed, uint64(n+1))),
			known: make(map[int]uint64), counts: make(map[string]int), told: &sum,
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h.ctx = ctx
	began := time.Now()
	var all sync.WaitGroup
	all.Go(func() { // ends the history; on a loaded machine it takes longer to say enough
		pause(ctx, length)
		for time.Since(began) < length+mostMore && !sum.enough() {
			pause(ctx, 50*time.Millisecond)
		}
		cancel()
	})
	for _, x := range h.tellers {
		all.Go(func() { x.tell(ctx, began) })
	}
	if testing.Verbose() {
		all.Go(func() {
			for was := -2; ctx.Err() == nil; pause(ctx, 20*time.Millisecond) {
				if now := h.leader(); now != was {
					was = now
					t.Logf("%v: server %d leads", time.Since(began), now)
				}
			}
		})
	}
	faults(h)
	all.Wait()
	for i := range natscluster.Size {
		if c.Server(i) == nil {
			if err := c.Restart(i); err != nil {
				t.Fatal(err)
			}
		}
		c.Rejoin(i)
	}
	counts := make(map[string]int)
	var ops []porcupine.Operation
	for _, x := range h.tellers {
		for what, n := range x.counts {
			counts[what] += n
		}
		ops = append(ops, x.ops...)
	}
	t.Logf("%d writes: %v; faults: %v", len(ops), counts, h.did)
	judge(t, ops, wholeLog(t, c))
	if !sum.enough() {
		t.Errorf("a history of %v says too little", counts)
	}
}

// wholeLog reads the register from its beginning, at every server, and gives the
// sequence of each message by its id.
func wholeLog(t *testing.T, c *natscluster.Cluster) map[string]uint64 {
	t.Helper()
	var first []string
	for i := range natscluster.Size {
		r, _ := dial(t, c, 2*time.Second, i)
		var last uint64
		until(t, patience, "end of the log", func() bool { // written once more, so that the end is known
			is, seq := r.Write(context.Background(), ownership.Write{ID: fmt.Sprintf("end-%d", i), Subject: "own.live.end.x", Data: []byte(fmt.Sprintf("end-%d", i))})
			last = seq
			return is == ownership.Stored
		})
		log := make([]string, last+1)
		ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
		var after uint64
		for after < last && ctx.Err() == nil {
			// A watch may be deaf, which the state machine finds out by itself.
			wctx, stop := context.WithTimeout(ctx, 15*time.Second)
			r.Watch(wctx, after, func(s ownership.Seen) {
				if s.Seq != after+1 && s.Seq <= last {
					t.Errorf("server %d: the watch goes from %d to %d", i, after, s.Seq)
				}
				if s.Seq <= last {
					log[s.Seq] = string(s.Data)
				}
				if after = s.Seq; after >= last {
					stop()
				}
			})
			stop()
		}
		cancel()
		if after < last {
			t.Fatalf("server %d: the watch came to %d of %d", i, after, last)
		}
		for seq := range first {
			if first[seq] != log[seq] {
				t.Errorf("message %d is %s at server 0 and %s at server %d", seq, first[seq], log[seq], i)
			}
		}
		if first == nil {
			first = log
		}
	}
	out := make(map[string]uint64)
	for seq, id := range first {
		if other, ok := out[id]; ok && seq > 0 {
			t.Errorf("%s is stored at %d and at %d", id, other, seq)
		}
		out[id] = uint64(seq)
	}
	return out
}

// judge completes the history with what the log says of unknown outcomes and
// holds it against the model.
func judge(t *testing.T, ops []porcupine.Operation, log map[string]uint64) {
	t.Helper()
	var told []porcupine.Operation
	for _, op := range ops {
		in, out := op.Input.(attempt), op.Output.(outcome)
		seq, stored := log[in.id]
		switch {
		case out.is == ownership.Stored && seq != out.seq:
			t.Errorf("%s was acknowledged at %d, the log has it at %d", in.id, out.seq, seq)
		case out.is == ownership.Conflict && stored:
			t.Errorf("%s was refused, and is in the log at %d", in.id, seq)
		case out.is == ownership.Unknown && !stored:
			continue // never happened
		case out.is == ownership.Unknown:
			op.Output = outcome{ownership.Stored, seq} // and returns at the end of time
		}
		told = append(told, op)
	}
	result, info := porcupine.CheckOperationsVerbose(oneRevision, told, time.Minute)
	if result != porcupine.Ok {
		file, err := os.CreateTemp("", "geogate-history-*.html")
		if err == nil {
			err = porcupine.Visualize(oneRevision, info, file)
			file.Close()
		}
		t.Errorf("the history is %s for a register of one revision; drawn in %s (%v)", result, file.Name(), err)
	}
}
