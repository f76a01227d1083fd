package dedupe_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"pgregory.net/rapid"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

const partition = 3

func openBadger(t testing.TB, dir string) *badger.DB {
	t.Helper()
	opts := badger.DefaultOptions(dir).WithLogger(nil).WithMemTableSize(8 << 20).WithInMemory(dir == "")
	db, err := badger.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// stores gives each test a fresh store of every kind.
func stores(t *testing.T, fn func(t *testing.T, fresh func(name string) dedupe.Store)) {
	t.Run("memory", func(t *testing.T) {
		fn(t, func(string) dedupe.Store { return dedupe.NewMemory() })
	})
	t.Run("badger", func(t *testing.T) {
		db := openBadger(t, "")
		t.Cleanup(func() { _ = db.Close() })
		fn(t, func(name string) dedupe.Store { return dedupe.NewBadger(db, []byte(name+"/"), 1, partition) })
	})
}

func ms(n int64) event.Stamp { return hlc.FromMillis(n) }

func makeCopy(key byte, region event.RegionID, offset int64, stamp event.Stamp) event.Copy {
	return event.Copy{
		At: event.Dot{Region: region, Partition: partition, Offset: offset}, ID: event.ID{byte(region), byte(offset), 9},
		Stamp: stamp, Key: event.IdempotencyKey{1, key}, Fingerprint: event.Fingerprint{7, key}, Epoch: event.FirstEpoch(region),
		Timestamp: stamp.Millis(), EntityKey: []byte{key},
	}
}

func at(region event.RegionID, next int64) (v event.Vector) {
	v[region].Next = next
	return v
}

func TestStoreKeepsEverythingOfACopy(t *testing.T) {
	stores(t, func(t *testing.T, fresh func(string) dedupe.Store) {
		full := makeCopy(1, 2, 40, ms(1000)+3)
		full.At.Incarnation, full.Void = 5, true
		full.Context[3] = event.Point{Incarnation: 2, Next: 77}
		bare := makeCopy(1, 1, 300, ms(999))
		bare.EntityKey, bare.Fingerprint, bare.Timestamp = nil, event.Fingerprint{}, 0
		empty := makeCopy(2, 1, 301, ms(999))
		empty.EntityKey = []byte{}
		s := fresh("a")
		applied := event.Vector{1: {Incarnation: 4}, 2: {Incarnation: 5, Next: 41}}
		marks := []event.Dot{{Region: 1, Partition: partition, Offset: 0}, {Region: 1, Incarnation: 1, Partition: partition, Offset: 260}}
		if err := s.Apply(dedupe.Update{Copies: []event.Copy{full, bare, empty}, Barriers: marks, Applied: applied}); err != nil {
			t.Fatal(err)
		}
		got, err := s.Copies(full.Key)
		if want := []event.Copy{bare, full}; err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Copies = %+v, %v\nwant %+v", got, err, want)
		}
		if got, err := s.Copies(empty.Key); err != nil || !reflect.DeepEqual(got, []event.Copy{empty}) {
			t.Errorf("Copies = %+v, %v", got, err)
		}
		if got, err := s.Copies(event.IdempotencyKey{9}); err != nil || len(got) != 0 {
			t.Errorf("Copies of an unknown key = %+v, %v", got, err)
		}
		st, err := s.State()
		if want := (dedupe.State{Applied: applied, Barriers: marks}); err != nil || !reflect.DeepEqual(st, want) {
			t.Errorf("State = %+v, %v", st, err)
		}
		if st, err := fresh("b").State(); err != nil || len(st.Barriers) != 0 || !st.Applied.IsZero() {
			t.Errorf("another store's state = %+v, %v", st, err)
		}
	})
}

func TestBadgerSurvivesReopening(t *testing.T) {
	dir := t.TempDir()
	db := openBadger(t, dir)
	c := makeCopy(1, 1, 4, ms(50))
	x, err := dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, dedupe.NewBadger(db, []byte("p/"), 1, partition))
	if err != nil {
		t.Fatal(err)
	}
	mark := event.Dot{Region: 1, Partition: partition, Offset: 3}
	if err := x.Apply([]event.Copy{c}, []event.Dot{mark}, at(1, 5)); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openBadger(t, dir)
	defer db.Close()
	x, err = dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, dedupe.NewBadger(db, []byte("p/"), 1, partition))
	if err != nil {
		t.Fatal(err)
	}
	if got := x.Applied(); got != at(1, 5) {
		t.Errorf("Applied = %v", got)
	}
	if got := x.Barriers(); !reflect.DeepEqual(got, []event.Dot{mark}) {
		t.Errorf("Barriers = %v", got)
	}
	if got, ok, err := x.Find(c.Key, 0, nil); err != nil || !ok || !reflect.DeepEqual(got, c) {
		t.Errorf("Find = %+v, %v, %v", got, ok, err)
	}
}

func TestVectorAloneIsStoredNowAndThen(t *testing.T) {
	s := dedupe.NewMemory()
	x, err := dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, s)
	if err != nil {
		t.Fatal(err)
	}
	for n := range int64(200) {
		if err := x.Apply(nil, nil, at(2, n+1)); err != nil {
			t.Fatal(err)
		}
		if got := x.Applied(); got != at(2, n+1) {
			t.Fatalf("Applied = %v after %d", got, n+1)
		}
	}
	if st, _ := s.State(); st.Applied[2].Next < 128 || st.Applied[2].Next >= 200 {
		t.Errorf("stored vector = %v", st.Applied[2])
	}
	if err := x.Apply([]event.Copy{makeCopy(1, 1, 0, ms(1))}, nil, at(1, 1)); err != nil {
		t.Fatal(err)
	}
	if st, _ := s.State(); st.Applied[2].Next != 200 || st.Applied[1].Next != 1 {
		t.Errorf("a copy was stored without its vector: %v", st.Applied)
	}
}

func TestChoose(t *testing.T) {
	const window = 10 * time.Millisecond
	void := func(c event.Copy) event.Copy { c.Void = true; return c }
	own, remote := makeCopy(1, 1, 5, ms(100)), makeCopy(1, 2, 6, ms(95))
	later := makeCopy(1, 1, 9, ms(106))
	for _, tc := range []struct {
		name   string
		copies []event.Copy
		closed event.Stamp
		in     *event.ValidityTable
		want   *event.Copy
	}{
		{"nothing", nil, 0, nil, nil},
		{"own", []event.Copy{own}, 0, nil, &own},
		{"own before a smaller remote one", []event.Copy{own, remote}, 0, nil, &own},
		{"remote where own is void", []event.Copy{void(own), remote}, 0, nil, &remote},
		{"void frees", []event.Copy{void(own), void(remote)}, 0, nil, nil},
		{"not expired", []event.Copy{own}, ms(110) - 1, nil, &own},
		{"expired", []event.Copy{own}, ms(110), nil, nil},
		{"window counts from the first, own or not", []event.Copy{own, remote}, ms(105), nil, nil},
		{"a later window answers", []event.Copy{remote, later}, ms(104), nil, &later},
		{"a twin's window does not last longer", []event.Copy{remote, makeCopy(1, 1, 9, ms(105))}, ms(105), nil, nil},
		{"below its cut", []event.Copy{own}, 0, cutAt(1, 6), &own},
		{"an orphan frees", []event.Copy{own}, 0, cutAt(1, 5), nil},
		{"remote where own is an orphan", []event.Copy{own, remote}, 0, cutAt(1, 5), &remote},
		{"the window begins with the first that counts", []event.Copy{own, remote}, ms(105), cutAt(2, 6), &own},
		{"an unknown epoch holds its key", []event.Copy{own}, 0, &event.ValidityTable{}, &own},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := dedupe.Choose(tc.copies, 1, window, tc.closed, tc.in)
			if ok != (tc.want != nil) || ok && !reflect.DeepEqual(got, *tc.want) {
				t.Errorf("Choose = %+v, %v, want %+v", got, ok, tc.want)
			}
		})
	}
}

// cutAt is a table under which a region's first epoch is cut at an offset and the
// others' run on.
func cutAt(region event.RegionID, offset int64) *event.ValidityTable {
	a := &event.ValidityTable{Revision: 1}
	for r := event.RegionID(1); r <= 3; r++ {
		a.Logs[r] = event.Tenures{Known: 100, List: []event.Tenure{{Epoch: event.FirstEpoch(r)}}}
	}
	t := &a.Logs[region].List[0]
	t.Ended, t.Cut = true, []event.Point{{Next: offset}}
	return a
}

// drawLogs makes the keyed copies of three origins' logs, few keys, close stamps.
func drawLogs(t *rapid.T) map[event.RegionID][]event.Copy {
	logs := make(map[event.RegionID][]event.Copy)
	for r := event.RegionID(1); r <= 3; r++ {
		stamp, offset := int64(100), int64(0)
		for range rapid.IntRange(0, 6).Draw(t, "n") {
			stamp += rapid.Int64Range(1, 8).Draw(t, "step")
			offset += rapid.Int64Range(1, 3).Draw(t, "gap")
			c := makeCopy(rapid.ByteRange(0, 2).Draw(t, "key"), r, offset, ms(stamp))
			c.Void = rapid.IntRange(0, 3).Draw(t, "void") == 0
			logs[r] = append(logs[r], c)
		}
	}
	return logs
}

// feed applies the logs in a drawn interleaving, in drawn batches, parts of it
// again, as after a restart.
func feed(t *rapid.T, x *dedupe.Index, logs map[event.RegionID][]event.Copy) {
	done := make(map[event.RegionID]int)
	for {
		var open []event.RegionID
		for r := event.RegionID(1); r <= 3; r++ {
			if done[r] < len(logs[r]) {
				open = append(open, r)
			}
		}
		if len(open) == 0 {
			return
		}
		r := rapid.SampledFrom(open).Draw(t, "origin")
		from := max(0, done[r]-rapid.IntRange(0, 2).Draw(t, "again"))
		to := min(len(logs[r]), done[r]+rapid.IntRange(1, 3).Draw(t, "batch"))
		if err := x.Apply(logs[r][from:to], nil, at(r, logs[r][to-1].At.Offset+1)); err != nil {
			t.Fatal(err)
		}
		done[r] = to
	}
}

// TestRebuiltEqualsLive: an index built in any order of own and remote copies
// gives the same answers as one built log by log.
func TestRebuiltEqualsLive(t *testing.T) {
	stores(t, func(t *testing.T, fresh func(string) dedupe.Store) {
		n := 0
		rapid.Check(t, func(t *rapid.T) {
			n++
			logs := drawLogs(t)
			cfg := dedupe.Config{Region: 1, Window: 10 * time.Millisecond}
			live, err := dedupe.New(cfg, fresh("live"+string(rune('a'+n))))
			if err != nil {
				t.Fatal(err)
			}
			feed(t, live, logs)
			rebuilt, err := dedupe.New(cfg, dedupe.NewMemory())
			if err != nil {
				t.Fatal(err)
			}
			for r := event.RegionID(3); r >= 1; r-- {
				if len(logs[r]) > 0 {
					_ = rebuilt.Apply(logs[r], nil, at(r, logs[r][len(logs[r])-1].At.Offset+1))
				}
			}
			if live.Applied() != rebuilt.Applied() {
				t.Fatalf("applied %v and %v", live.Applied(), rebuilt.Applied())
			}
			compare(t, live, rebuilt, rapid.Int64Range(90, 160).Draw(t, "closed"))
		})
	})
}

func compare(t *rapid.T, a, b *dedupe.Index, closed int64) {
	for k := byte(0); k <= 2; k++ {
		key := event.IdempotencyKey{1, k}
		ca, erra := a.Lookup(key)
		cb, errb := b.Lookup(key)
		if erra != nil || errb != nil || !slices.EqualFunc(ca, cb, func(x, y event.Copy) bool { return reflect.DeepEqual(x, y) }) {
			t.Fatalf("copies of %d: %+v, %v and %+v, %v", k, ca, erra, cb, errb)
		}
		// The cut comes to be known before, between or after the copies: what the
		// indexes hold does not depend on it.
		for _, in := range []*event.ValidityTable{nil, cutAt(1, 5), cutAt(2, 5)} {
			fa, oka, _ := a.Find(key, ms(closed), in)
			fb, okb, _ := b.Find(key, ms(closed), in)
			none := event.IdempotencyKey{9, k}
			all, err := a.FindAll([]event.IdempotencyKey{none, key, key}, ms(closed), in)
			if err != nil || all[0] != nil || (all[1] != nil) != oka || oka && (!reflect.DeepEqual(*all[1], fa) || !reflect.DeepEqual(*all[2], fa)) {
				t.Fatalf("FindAll for %d: %+v, %v; Find: %+v, %v", k, all, err, fa, oka)
			}
			if oka != okb || !reflect.DeepEqual(fa, fb) {
				t.Fatalf("answers for %d: %+v, %v and %+v, %v", k, fa, oka, fb, okb)
			}
		}
	}
}

// TestSweepChangesNoAnswer: what a sweep removes could not have answered any more,
// at its closed stamp or a later one, also with what arrives afterwards.
func TestSweepChangesNoAnswer(t *testing.T) {
	stores(t, func(t *testing.T, fresh func(string) dedupe.Store) {
		n := 0
		rapid.Check(t, func(t *rapid.T) {
			n++
			logs := drawLogs(t)
			cfg := dedupe.Config{Region: 1, Window: 10 * time.Millisecond}
			swept, err := dedupe.New(cfg, fresh("sweep"+string(rune('a'+n))))
			if err != nil {
				t.Fatal(err)
			}
			kept, err := dedupe.New(cfg, dedupe.NewMemory())
			if err != nil {
				t.Fatal(err)
			}
			closed := rapid.Int64Range(90, 160).Draw(t, "closed")
			early, late := make(map[event.RegionID][]event.Copy), make(map[event.RegionID][]event.Copy)
			for r, cs := range logs {
				for _, c := range cs { // nothing at or below closed arrives after it
					if c.Stamp <= ms(closed) || len(late[r]) == 0 && rapid.Bool().Draw(t, "early") {
						early[r] = append(early[r], c)
					} else {
						late[r] = append(late[r], c)
					}
				}
			}
			feed(t, swept, early)
			feed(t, kept, early)
			tables := []*event.ValidityTable{nil, cutAt(1, 5), cutAt(2, 5)}
			in := rapid.SampledFrom(tables).Draw(t, "table")
			if _, err := swept.Sweep(ms(closed), in); err != nil {
				t.Fatal(err)
			}
			feed(t, swept, late)
			feed(t, kept, late)
			later := closed + rapid.Int64Range(0, 30).Draw(t, "later")
			for k := byte(0); k <= 2; k++ {
				fa, oka, erra := swept.Find(event.IdempotencyKey{1, k}, ms(later), in)
				fb, okb, errb := kept.Find(event.IdempotencyKey{1, k}, ms(later), in)
				if erra != nil || errb != nil || oka != okb || !reflect.DeepEqual(fa, fb) {
					t.Fatalf("answers for %d: %+v, %v and %+v, %v", k, fa, oka, fb, okb)
				}
			}
		})
	})
}

func TestSweepRemoves(t *testing.T) {
	stores(t, func(t *testing.T, fresh func(string) dedupe.Store) {
		s := fresh("r")
		x, err := dedupe.New(dedupe.Config{Region: 1, Window: 10 * time.Millisecond}, s)
		if err != nil {
			t.Fatal(err)
		}
		void := makeCopy(1, 1, 3, ms(100))
		void.Void = true
		copies := []event.Copy{makeCopy(1, 1, 1, ms(100)), makeCopy(1, 2, 1, ms(108)), void, makeCopy(1, 1, 8, ms(120)), makeCopy(2, 1, 9, ms(130))}
		if err := x.Apply(copies, nil, at(1, 10)); err != nil {
			t.Fatal(err)
		}
		if n, err := x.Sweep(ms(109), nil); err != nil || n != 0 {
			t.Errorf("Sweep before the end of the window = %d, %v", n, err)
		}
		if n, err := x.Sweep(ms(110), nil); err != nil || n != 1 {
			t.Errorf("Sweep of the void copy = %d, %v, want 1", n, err)
		}
		// A late cut takes the first of the window away; its twin stands for a
		// window of its own.
		if c, ok, err := x.Find(copies[0].Key, ms(117), cutAt(1, 1)); err != nil || !ok || c.At != copies[1].At {
			t.Errorf("Find under a late cut = %+v, %v, %v", c, ok, err)
		}
		if n, err := x.Sweep(ms(118), nil); err != nil || n != 2 {
			t.Errorf("Sweep of the window = %d, %v, want 2", n, err)
		}
		if cs, _ := x.Lookup(copies[0].Key); !reflect.DeepEqual(cs, []event.Copy{copies[3]}) {
			t.Errorf("left: %+v", cs)
		}
	})
}
