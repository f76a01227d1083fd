package dedupe

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/keyset"
)

// Copy is one accepted record of an idempotency key.
type Copy = event.Copy

// State is what a store knows about how far it has come.
type State struct {
	Applied  event.Vector
	Barriers []event.Dot // of the own log, in log order
}

// Update is stored in one atomic step.
type Update struct {
	Copies   []Copy
	Barriers []event.Dot  // added to State.Barriers
	Applied  event.Vector // replaces State.Applied
	// With, if not nil, stores what another index in the same database has of the batch:
	// it reads and writes in the transaction of this one. Keys and values must not change
	// before Apply returns. Only a Badger takes it.
	With With
}

// With is what another index does in the transaction of a batch; get gives nil for what
// is not there.
type With = func(get func(key []byte) ([]byte, error), set func(key, value []byte) error) error

// Store keeps the copies of one topic partition. It is safe for concurrent use.
type Store interface {
	// State is what the last Apply left.
	State() (State, error)
	// Copies lists every copy of a key, in the order of writes (event.Order).
	Copies(key event.IdempotencyKey) ([]Copy, error)
	// CopiesOf calls fn for each key of which there are copies, with its place in keys and
	// all of them in the order of writes. The slice is fn's own.
	CopiesOf(keys []event.IdempotencyKey, fn func(i int, copies []Copy)) error
	// Keys lists keys that have copies, in ascending order from a key on; more is false
	// when there are none after them. At least n are listed if there are so many.
	Keys(from event.IdempotencyKey, n int) (keys []event.IdempotencyKey, more bool, err error)
	// Apply stores a batch; a copy that is there already is stored again.
	Apply(b Update) error
	// Scan calls fn for each key with its copies, ordered; fn returns those to
	// remove, which Scan does. It may run for long; what is applied meanwhile may
	// or may not be seen.
	Scan(fn func(copies []Copy) (remove []Copy)) error
}

// Config of an Index.
type Config struct {
	Region event.RegionID // whose own copies answer first
	Window time.Duration  // of a key, from its first use; must be above 0
}

// Index answers whether a key was used. It is safe for concurrent use.
type Index struct {
	cfg   Config
	store Store
	seen  *keyset.Set

	mu      sync.Mutex
	state   State
	unsaved int // Apply calls that moved the vector and were not stored
}

// saveEvery is how many Apply calls that only move the vector are kept in memory:
// lost, they are read from the log again.
const saveEvery = 64

// New opens an index over a store.
func New(cfg Config, store Store) (*Index, error) {
	if cfg.Window <= 0 || !cfg.Region.Valid() {
		return nil, fmt.Errorf("dedupe: window %v of region %d is not possible", cfg.Window, cfg.Region)
	}
	st, err := store.State()
	if err != nil {
		return nil, fmt.Errorf("read index state: %w", err)
	}
	x := &Index{cfg: cfg, store: store, state: st}
	x.seen = keyset.New(x)
	return x, nil
}

// Applied is how far each origin's log is indexed.
func (x *Index) Applied() event.Vector {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.state.Applied
}

// Barriers lists the own log's barriers that were applied, in log order.
func (x *Index) Barriers() []event.Dot {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.state.Barriers)
}

// Apply stores copies, barriers of the own log, and the vector, of which only the
// entries above the present ones count, in one atomic step. Applying again what
// was applied has no effect.
func (x *Index) Apply(copies []Copy, barriers []event.Dot, applied event.Vector) error {
	return x.ApplyWith(copies, barriers, applied, nil)
}

// ApplyWith is Apply, and stores what another index in the same database has of the batch
// in the same step (Update.With), if that is not nil.
func (x *Index) ApplyWith(copies []Copy, barriers []event.Dot, applied event.Vector, with With) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	b := Update{Copies: copies, Applied: x.state.Applied, With: with}
	b.Applied.Join(&applied)
	for _, d := range barriers {
		if n := len(x.state.Barriers); n == 0 || before(x.state.Barriers[n-1], d) {
			b.Barriers = append(b.Barriers, d)
		}
	}
	if len(copies) == 0 && len(b.Barriers) == 0 && with == nil {
		if x.unsaved++; x.unsaved < saveEvery {
			x.state.Applied = b.Applied
			return nil
		}
	}
	keys := make([]event.IdempotencyKey, len(copies))
	for i := range copies {
		keys[i] = copies[i].Key
	}
	if err := x.seen.Note(keys, x.store.Keys); err != nil {
		return fmt.Errorf("list keys: %w", err)
	}
	if err := x.store.Apply(b); err != nil {
		return fmt.Errorf("store keys: %w", err)
	}
	x.unsaved = 0
	x.state.Applied = b.Applied
	x.state.Barriers = append(x.state.Barriers, b.Barriers...)
	return nil
}

func before(a, b event.Dot) bool {
	if a.Incarnation != b.Incarnation {
		return a.Incarnation < b.Incarnation
	}
	return a.Offset < b.Offset
}

// Lookup lists every copy of a key, in the total order.
func (x *Index) Lookup(key event.IdempotencyKey) ([]Copy, error) {
	cs, err := x.store.Copies(key)
	if err != nil {
		return nil, fmt.Errorf("look up key: %w", err)
	}
	return cs, nil
}

// Find is the copy that a retry is answered with; ok is false when the key is
// free. closed is the lowest closed stamp of all regions, in the table that says
// which copies are orphans (nil: none is).
func (x *Index) Find(key event.IdempotencyKey, closed event.Stamp, in *event.ValidityTable) (c Copy, ok bool, err error) {
	cs, err := x.Lookup(key)
	if err != nil {
		return Copy{}, false, err
	}
	c, ok = chooseCopy(cs, x.cfg.Region, x.cfg.Window, closed, in)
	return c, ok, nil
}

// FindAll is Find for many keys at once: nil where a key is free.
func (x *Index) FindAll(keys []event.IdempotencyKey, closed event.Stamp, in *event.ValidityTable) ([]*Copy, error) {
	found := make([]*Copy, len(keys))
	at := x.seen.Maybe(keys)
	if len(at) == 0 {
		return found, nil
	}
	asked := make([]event.IdempotencyKey, len(at))
	for i, j := range at {
		asked[i] = keys[j]
	}
	err := x.store.CopiesOf(asked, func(i int, cs []Copy) {
		if c, ok := chooseCopy(cs, x.cfg.Region, x.cfg.Window, closed, in); ok {
			found[at[i]] = &c
		}
	})
	if err != nil {
		return nil, fmt.Errorf("look up keys: %w", err)
	}
	return found, nil
}

// chooseCopy is the pure rule that Find goes by, over all copies of one key in any order.
func chooseCopy(copies []Copy, own event.RegionID, window time.Duration, closed event.Stamp, in *event.ValidityTable) (c Copy, ok bool) {
	windows := windowsOf(copies, window, in)
	if len(windows) == 0 {
		return Copy{}, false
	}
	last := windows[len(windows)-1]
	if expired(last, window, closed) {
		return Copy{}, false
	}
	for _, c := range last {
		if c.At.Region == own {
			return c, true
		}
	}
	return last[0], true
}

// windowsOf parts the copies of one key that count into windows: the first of each
// stands, the others are its twins. Void copies do not count, nor do those that a
// table calls orphans. The index keeps both all the same: a later table knows more,
// and what stays must not depend on which one was there when a copy came.
func windowsOf(copies []Copy, window time.Duration, in *event.ValidityTable) [][]Copy {
	var valid []Copy
	for _, c := range copies {
		if counts(&c, in) {
			valid = append(valid, c)
		}
	}
	slices.SortFunc(valid, order)
	var out [][]Copy
	for _, c := range valid {
		if n := len(out); n > 0 && c.Stamp <= out[n-1][0].Stamp.Add(window) {
			out[n-1] = append(out[n-1], c)
			continue
		}
		out = append(out, []Copy{c})
	}
	return out
}

func counts(c *Copy, in *event.ValidityTable) bool {
	return !c.Void && in.Judge(c.At, c.Epoch) != event.Orphan
}

func expired(w []Copy, window time.Duration, closed event.Stamp) bool {
	return w[0].Stamp.Add(window) <= closed
}

func order(a, b Copy) int { return a.Order().Compare(b.Order()) }

// Sweep removes windows that have expired under closed, whole, and copies that do
// not count as old; it returns how many copies went. What is left answers every
// retry as before. A window whose last copy has not expired by itself stays: a cut
// that comes to be known late may take the first away, and the last then stands.
func (x *Index) Sweep(closed event.Stamp, in *event.ValidityTable) (int, error) {
	n := 0
	err := x.store.Scan(func(copies []Copy) (remove []Copy) {
		for _, w := range windowsOf(copies, x.cfg.Window, in) {
			if !expired(w[len(w)-1:], x.cfg.Window, closed) {
				break // later windows end later
			}
			remove = append(remove, w...)
		}
		for _, c := range copies {
			if !counts(&c, in) && c.Stamp.Add(x.cfg.Window) <= closed {
				remove = append(remove, c)
			}
		}
		n += len(remove)
		return remove
	})
	x.seen.Swept(n)
	if err != nil {
		return n, fmt.Errorf("sweep keys: %w", err)
	}
	return n, nil
}
