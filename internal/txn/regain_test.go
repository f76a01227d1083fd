package txn_test

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/geogate/geogate/internal/txn"
)

func initialise(t *testing.T, p *txn.Producer) {
	t.Helper()
	if err := p.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func produceOne(t *testing.T, p *txn.Producer, value string) {
	t.Helper()
	b := batch(t, kgo.CodecNone, txn.Record{Value: []byte(value), Timestamp: 1})
	if _, err := p.Produce(t.Context(), []txn.PartitionBatch{{Topic: "t", Batch: b}}); err != nil {
		t.Fatal(err)
	}
}

func commitOne(t *testing.T, p *txn.Producer, value string) {
	t.Helper()
	if _, err := p.Commit(t.Context(), []txn.Record{{Topic: "t", Value: []byte(value), Timestamp: 1}}); err != nil {
		t.Fatal(err)
	}
}

// A producer whose successor has come leaves it alone, whatever either was doing.
func TestInitTakesNothingFromASuccessorOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		c.create(t, c.client(t), 1, "t")
		for _, oldOpen := range []bool{false, true} {
			for _, now := range []string{"idle", "writing", "written"} {
				t.Run(map[bool]string{false: "idle", true: "open"}[oldOpen]+" then "+now, func(t *testing.T) {
					old, young := txn.New(c.client(t), t.Name(), txn.Options{}), txn.New(c.client(t), t.Name(), txn.Options{})
					initialise(t, old)
					commitOne(t, old, "a")
					if oldOpen {
						produceOne(t, old, "b")
					}
					initialise(t, young)
					if now == "written" {
						commitOne(t, young, "c")
					}
					if now == "writing" {
						produceOne(t, young, "d")
					}
					var err error
					if oldOpen {
						_, err = old.End(t.Context(), true)
					} else {
						err = old.Add(t.Context(), "t", 0)
					}
					if err == nil {
						t.Fatal("the old one goes on")
					}
					if err := old.Init(t.Context()); !errors.Is(err, txn.ErrFenced) {
						t.Fatalf("the old one comes again: %v", err)
					}
					if now != "writing" {
						produceOne(t, young, "d")
					}
					if _, err := young.End(t.Context(), true); err != nil {
						t.Fatalf("the young one: %v", err)
					}
				})
			}
		}
	})
}

// A producer that is alone goes on after everything that may happen to its transaction.
func TestInitResumesOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		cl := c.client(t)
		c.create(t, cl, 1, "t")
		for name, trouble := range map[string]func(t *testing.T, p *txn.Producer){
			"nothing":           func(*testing.T, *txn.Producer) {},
			"open":              func(t *testing.T, p *txn.Producer) { produceOne(t, p, "lost") },
			"aborted":           func(t *testing.T, p *txn.Producer) { produceOne(t, p, "lost"); endUnheard(t, cl, p, false) },
			"committed":         func(t *testing.T, p *txn.Producer) { produceOne(t, p, "kept"); endUnheard(t, cl, p, true) },
			"initialised twice": func(t *testing.T, p *txn.Producer) { initialise(t, p); initialise(t, p) },
		} {
			t.Run(name, func(t *testing.T) {
				p := txn.New(cl, t.Name(), txn.Options{})
				initialise(t, p)
				for range 3 {
					commitOne(t, p, "before")
					trouble(t, p)
					initialise(t, p)
					p = p.Over(cl)
					initialise(t, p)
				}
				commitOne(t, p, "after")
			})
		}
	})
}

// endUnheard ends the producer's transaction as if its answer had been lost.
func endUnheard(t *testing.T, cl *kgo.Client, p *txn.Producer, commit bool) {
	t.Helper()
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = t.Name(), p.ProducerID(), p.Epoch(), commit
	resp, err := req.RequestWith(t.Context(), cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// After a time-out, a suspended machine's for one, the producer goes on: nobody else
// holds the id.
func TestInitAfterATimeoutOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		cl := c.client(t)
		c.create(t, cl, 1, "t")
		p := txn.New(cl, "id", txn.Options{Timeout: time.Second})
		initialise(t, p)
		produceOne(t, p, "lost")
		c.awaitMarker(t, "t")
		if _, err := p.End(t.Context(), true); err == nil {
			t.Fatal("a transaction that the cluster has aborted is committed")
		}
		initialise(t, p)
		commitOne(t, p, "kept")
	})
}

// awaitMarker returns when the topic has a marker.
func (c cluster) awaitMarker(t *testing.T, topic string) {
	t.Helper()
	cl := c.client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
	for marked := false; !marked; {
		fetches := cl.PollFetches(t.Context())
		if err := fetches.Err0(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { marked = marked || r.Attrs.IsControl() })
	}
}

// A coordinator that cannot say who holds the id is asked by epoch alone.
func TestInitWithoutDescribeTransactions(t *testing.T) {
	versions := kversion.V2_8_0()
	c := fake(t, kfake.MaxVersions(versions))
	cl := c.client(t)
	c.create(t, cl, 1, "t")
	p := txn.New(cl, "id", txn.Options{RetryFor: 2 * time.Second})
	initialise(t, p)
	produceOne(t, p, "lost")
	initialise(t, p)
	commitOne(t, p, "kept")
}

// A broker that has broken a connection since the transaction began may have been started
// again, also if it was another request of the client that met that: the embedded Kafka then
// raises the epoch as a successor does, and the producer goes on. Without that it is a
// successor.
func TestInitAfterABreakThatAnotherRequestMet(t *testing.T) {
	for name, broken := range map[string]bool{"broken": true, "not broken": false} {
		t.Run(name, func(t *testing.T) {
			c := fake(t)
			cl := c.client(t, txn.WatchBreaks())
			c.create(t, cl, 1, "t")
			p := txn.New(cl, "id", txn.Options{})
			initialise(t, p)
			commitOne(t, p, "a")
			produceOne(t, p, "b")
			if broken {
				c.fake.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
					return nil, errors.New("killed"), true // the connection is closed
				})
			}
			if _, err := cl.Request(t.Context(), kmsg.NewPtrMetadataRequest()); err != nil {
				t.Fatal(err)
			}
			initialise(t, txn.New(c.client(t), "id", txn.Options{})) // ends it and raises the epoch
			if _, err := p.End(t.Context(), true); err == nil {
				t.Fatal("what was ended was committed")
			}
			err := p.Init(t.Context())
			if !broken {
				if !errors.Is(err, txn.ErrFenced) {
					t.Fatalf("a successor has come: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			commitOne(t, p, "c")
		})
	}
}
