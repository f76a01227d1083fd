package control_test

import (
	"runtime"
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/offsets"
)

// foldedEvery is how many records of runs a link folds into one.
const foldedEvery = 512

// copied gives an index what a link writes of a partition: a run a transaction, of some
// records, with the transaction's marker after it, and a block in the place of every
// foldedEvery of them.
func copied(tb testing.TB, l *control.LinkIndex, partition int32, transactions, records int64) {
	tb.Helper()
	apply := func(first int64, value []byte) {
		if err := l.ApplyRuns(offsets.AppendKey(nil, topicA, partition, first), value); err != nil {
			tb.Fatal(err)
		}
	}
	var unfolded []offsets.Run
	for i := range transactions {
		r := offsets.Run{Target: i * (records + 1), Source: i * records, Count: records, Barrier: -1}
		apply(r.Target, offsets.AppendRuns(nil, []offsets.Run{r}))
		if unfolded = append(unfolded, r); len(unfolded) == foldedEvery {
			apply(unfolded[0].Target, offsets.AppendRuns(nil, unfolded))
			for _, r := range unfolded[1:] {
				apply(r.Target, nil)
			}
			unfolded = unfolded[:0]
		}
		if i%64 == 0 {
			l.RunsReadTo(slot, i+1)
		}
	}
	l.RunsReadTo(slot, transactions+1)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkRunsInMemory tells what a day of a link takes: at 1,000 writes a second and a
// transaction of each of six partitions every 35 ms, 15 million runs.
func BenchmarkRunsInMemory(b *testing.B) {
	for b.Loop() {
		before := heap()
		l := control.NewLinkIndex()
		for p := range int32(6) {
			copied(b, l, p, 10_000_000/6, 6)
		}
		b.ReportMetric(float64(heap()-before)/(1<<20), "MiB/10Mruns")
		runtime.KeepAlive(l)
	}
}
