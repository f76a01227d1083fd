//go:build unix

package apache_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/apache"
)

// TestApacheIsLentClear: a test that borrows a broker finds nothing that the one before has
// left, not even an open transaction in a topic of the same name.
func TestApacheIsLentClear(t *testing.T) {
	apache.Require(t)
	var pool apache.Pool
	pid := 0
	run := pool.Main(runner(func() int {
		for range 2 {
			t.Run("borrower", func(t *testing.T) {
				b := pool.Lend(t, apache.Default, 1)[0]
				if pid != 0 && b.Pid() != pid {
					t.Errorf("process %d is lent, then %d", pid, b.Pid())
				}
				pid = b.Pid()
				cl, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds()...), kgo.TransactionalID("left"), kgo.DisableClientMetrics())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(cl.CloseAllowingRebalance)
				if resp, err := kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, "t"); err != nil || resp.Err != nil {
					t.Fatal(err, resp.Err)
				}
				if err := apache.Ready(t.Context(), cl, "t"); err != nil {
					t.Fatal(err)
				}
				if n := end(t, b); n != 0 {
					t.Errorf("a new topic has %d records", n)
				}
				if err := cl.BeginTransaction(); err != nil {
					t.Fatal(err)
				}
				if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("open")}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			})
		}
		return 0
	}))
	if code := run.Run(); code != 0 {
		t.Errorf("the brokers end with %d", code)
	}
}

// runner is the tests of a package.
type runner func() int

func (r runner) Run() int { return r() }
