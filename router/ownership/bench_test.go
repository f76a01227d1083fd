package ownership_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/router/ownership/register"
	"github.com/geogate/geogate/testbench/natscluster"
)

// Figures of ownership on real in-process servers, to be taken with
//
//	go test ./router -run '^$' -bench . -benchtime 1x
//
// W is 12.2 s here, with the shortest lease that is allowed, and 18.4 s with the
// default. Nothing is asserted of times.

// BenchmarkConditionalWrites: as many conditional writes as a register of three
// servers takes, every client on a record of its own.
func BenchmarkConditionalWrites(b *testing.B) {
	for _, clients := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			c := startCluster(b)
			var regs []*register.Register
			for n := range clients {
				r, _ := dial(b, c, 5*time.Second, n%natscluster.Size)
				regs = append(regs, r)
			}
			const length = 3 * time.Second
			var stored, other atomic.Int64
			took := make([][]time.Duration, clients)
			b.ResetTimer()
			ctx, cancel := context.WithTimeout(context.Background(), length)
			defer cancel()
			var all sync.WaitGroup
			for n, r := range regs {
				all.Go(func() {
					var rev uint64
					for i := 0; ctx.Err() == nil; i++ {
						subject, began := fmt.Sprintf("own.region.bench%d", n), time.Now()
						is, seq := r.Write(context.Background(), ownership.Write{
							ID: fmt.Sprintf("b%d-%d", n, i), Subject: subject, Data: []byte(`{"v":1}`), Guard: subject, Expect: rev,
						})
						if is != ownership.Stored {
							other.Add(1)
							continue
						}
						rev = seq
						stored.Add(1)
						took[n] = append(took[n], time.Since(began))
					}
				})
			}
			all.Wait()
			b.StopTimer()
			times := slices.Sorted(slices.Values(slices.Concat(took...)))
			b.ReportMetric(float64(stored.Load())/length.Seconds(), "writes/s")
			b.ReportMetric(float64(other.Load()), "not-stored")
			b.ReportMetric(ms(times[len(times)/2]), "p50-ms")
			b.ReportMetric(ms(times[len(times)*99/100]), "p99-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// BenchmarkIdleRegister: what an instance writes while nothing happens.
func BenchmarkIdleRegister(b *testing.B) {
	c := startCluster(b)
	s := newSite(b, "us", 1)
	a, _ := s.start(quorum(c.Dialer(0)))
	until(b, 60*time.Second, "grant", granted(a, "default/us"))
	written := func() (n float64) {
		for _, result := range []string{"ok", "refused", "busy", "unknown"} {
			n += max(metric(b, s, "geogate_ownership_register_write_seconds", "result", result), 0)
		}
		return n
	}
	const length = 30 * time.Second
	before := written()
	b.ResetTimer()
	<-time.After(length)
	b.StopTimer()
	rate := (written() - before) / length.Seconds()
	b.ReportMetric(rate, "writes/s")
	b.ReportMetric(rate*s.lease.Renew.Seconds(), "writes/renewal")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFenceLiving: from the command to the end of the other region's grant,
// to the answer, and back from unfence to the next grant, by phase.
func BenchmarkFenceLiving(b *testing.B) {
	c := startCluster(b)
	us, eu := newSite(b, "us", 1), newSite(b, "eu", 2)
	us.lease, eu.lease = shortLease(), shortLease()
	a, _ := us.start(quorum(c.Dialer(0)))
	o, _ := eu.start(quorum(c.Dialer(1)))
	const unit = "default/eu"
	until(b, 60*time.Second, "grant of us", granted(a, "default/us"))
	until(b, 60*time.Second, "grant of eu", granted(o, unit))
	ctx := context.Background()
	var effect, answer, unfenced, bumped, claimed time.Duration
	const rounds = 3
	for range rounds {
		g, _ := o.Grant(unit)
		began := time.Now()
		done := make(chan ownership.Result, 1)
		go func() {
			done <- a.Ask(ctx, ownership.Command{Verb: ownership.VerbFence, Region: "eu", Reason: "bench"})
		}()
		spin(b, func() bool { return !o.Holds(unit, g) })
		effect += time.Since(began)
		if r := <-done; r.Code != ownership.ResultDone {
			b.Fatalf("fence: %+v", r)
		}
		answer += time.Since(began)

		began = time.Now()
		if r := a.Ask(ctx, ownership.Command{Verb: ownership.VerbUnfence, Region: "eu"}); r.Code != ownership.ResultDone {
			b.Fatalf("unfence: %+v", r)
		}
		unfenced += time.Since(began)
		live := a.Tokens().Regions["eu"].Record.Live
		spin(b, func() bool { return o.Tokens().Regions["eu"].Record.Live > live })
		bumped += time.Since(began)
		spin(b, granted(o, unit))
		claimed += time.Since(began)
	}
	b.ReportMetric(ms(effect/rounds), "fence-effect-ms")
	b.ReportMetric(ms(answer/rounds), "fence-answer-ms")
	b.ReportMetric(ms(unfenced/rounds), "unfence-answer-ms")
	b.ReportMetric(ms(bumped/rounds), "claim-bump-ms")
	b.ReportMetric(ms(claimed/rounds), "claim-grant-ms")
	b.ReportMetric(ms(us.lease.Wait()), "W-ms")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFenceDead: the other region's process is killed, its server of the
// register with it; from the command to the answer by phase. Whether that server
// led the register decides whether an election comes first.
func BenchmarkFenceDead(b *testing.B) {
	for _, leads := range []bool{false, true} {
		b.Run(fmt.Sprintf("leader=%t", leads), func(b *testing.B) { fenceDead(b, leads) })
	}
}

func fenceDead(b *testing.B, leads bool) {
	us, a, c := besideChild(b, leads)
	c.p.Kill()
	began := time.Now()
	done := make(chan ownership.Result, 1)
	go func() {
		done <- fenceEU(context.Background(), a, "bench")
	}()
	spin(b, func() bool { return a.Tokens().Regions["eu"].Record.State == ownership.RegionFenced })
	fence := time.Since(began)
	spin(b, func() bool { return a.Tokens().Units["default/eu"].Record.State == ownership.UnitFenced })
	units := time.Since(began)
	spin(b, func() bool { return cutOf(a, "default/eu", 18) != nil })
	cut := time.Since(began)
	r := <-done
	if r.Code != ownership.ResultLoss {
		b.Errorf("fence: %+v", r)
	}
	b.ReportMetric(ms(fence), "region-fenced-ms")
	b.ReportMetric(ms(units-fence), "units-fenced-ms")
	b.ReportMetric(ms(us.lease.Wait()), "W-ms")
	b.ReportMetric(ms(cut-fence-us.lease.Wait()), "cut-after-W-ms")
	b.ReportMetric(ms(time.Since(began)), "answer-ms")
	b.ReportMetric(0, "ns/op")
}

// spin waits for a condition and looks often.
func spin(b *testing.B, ok func() bool) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			b.Fatal("it does not come about")
		}
		<-time.After(200 * time.Microsecond)
	}
}
