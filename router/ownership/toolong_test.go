package ownership

import (
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/router"
)

// TestRecordTooLong: a fence whose record the register does not take ends with the reason,
// and is not sent again and again; a later command tries again.
func TestRecordTooLong(t *testing.T) {
	topology, err := router.NewTopology(router.Region{Name: "us", ID: 1}, router.Region{Name: "eu", ID: 2})
	if err != nil {
		t.Fatal(err)
	}
	c := NewCore(CoreConfig{Region: "us", ID: 1, Regions: topology, Instance: "us-0", Life: "a", Lease: DefaultLease()})
	u := UnitRecord{Version: 1, Unit: "air/eu", Epoch: 18, Owner: "eu", State: UnitActive, Last: "eu", Epochs: []Tenure{{Epoch: 18, Owner: "eu"}}}
	now := time.Second
	c.Step(now, Opened{Created: 1, Last: 1})
	c.Step(now, Seen{Subject: UnitSubject(u.Unit), Seq: 1, Data: encode(u)})
	var writes int
	var answer *Result
	run := func(effects []Effect) {
		var pending []Effect
		pending = append(pending, effects...)
		for len(pending) > 0 {
			e := pending[0]
			pending = pending[1:]
			switch e := e.(type) {
			case Write:
				if e.Subject != UnitSubject(u.Unit) {
					continue // nothing else is answered
				}
				writes++
				pending = append(pending, c.Step(now, Written{Op: e.Op, Outcome: TooLong})...)
			case Answer:
				answer = &e.Result
			}
		}
	}
	run(c.Step(now, Ask{Ref: 1, Command: Command{Verb: VerbFence, Unit: u.Unit, Reason: "test"}}))
	for range 20 {
		now += 100 * time.Millisecond
		run(c.Step(now, Wake{}))
	}
	if writes != 1 || answer == nil || answer.Code != ResultPrecondition || !strings.Contains(answer.Detail, "max_payload") {
		t.Fatalf("%d writes, answer %+v", writes, answer)
	}
	if list := c.Tokens().TooLong; len(list) != 1 || !strings.Contains(list[0], "air/eu") {
		t.Errorf("told of %v", list)
	}
	now, answer = now+inspectAgain, nil // the limit was raised, perhaps
	run(c.Step(now, Ask{Ref: 2, Command: Command{Verb: VerbFence, Unit: u.Unit, Reason: "test"}}))
	if writes != 2 {
		t.Errorf("%d writes after a second command", writes)
	}
}
