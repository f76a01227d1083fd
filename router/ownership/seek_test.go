package ownership

import (
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/router"
)

// TestLackingExtents: an instance whose watch brings a record, and not what that names,
// asks for the newest record of the unit. It goes on when there is a newer one, for then the
// register has dropped what the earlier one named; when there is none, it believes the
// register no more.
func TestLackingExtents(t *testing.T) {
	topology, err := router.NewTopology(router.Region{Name: "us", ID: 1}, router.Region{Name: "eu", ID: 2})
	if err != nil {
		t.Fatal(err)
	}
	named := func(at int64) (UnitRecord, []ExtentsRecord) {
		u := UnitRecord{Unit: "air/eu", Epoch: 18, State: UnitFenced, Last: "eu", Epochs: []Tenure{{Epoch: 18, Owner: "eu", Ended: true, Cut: wide(100, 3, at)}}}
		return u, outside(&u, 0)
	}
	first, _ := named(1)
	second, parts := named(2)
	second.Prev = 1
	for name, follows := range map[string]bool{"damage": false, "late reader": true} {
		c := NewCore(CoreConfig{Region: "us", ID: 1, Regions: topology, Instance: "us-0", Life: "a", Lease: DefaultLease()})
		now, asked := time.Second, 0
		answer := func(effects []Effect) {
			for _, e := range append([]Effect(nil), effects...) {
				r, ok := e.(Read)
				if !ok || r.Subject != UnitSubject(first.Unit) {
					continue
				}
				asked++
				newest := Seen{Source: Answered, Subject: r.Subject, Seq: 1, Data: encode(first)}
				if follows && asked > 2 { // the servers that answered before lag
					newest.Seq, newest.Data = 3, encode(second)
				}
				c.Step(now, newest)
			}
		}
		c.Step(now, Opened{Created: 1, Last: 1})
		answer(c.Step(now, Seen{Subject: UnitSubject(first.Unit), Seq: 1, Data: encode(first)}))
		for range 20 {
			now += inquireEvery
			answer(c.Step(now, Wake{}))
		}
		if !follows {
			if why := c.Regressed(); !strings.Contains(why, "air/eu names starts or cuts") {
				t.Errorf("%s: believed, or not because of %q", name, why)
			}
			continue
		}
		c.Step(now, Seen{Subject: ExtentsSubjects + "air.eu.0", Seq: 2, Data: encode(parts[0])})
		c.Step(now, Seen{Subject: UnitSubject(second.Unit), Seq: 3, Data: encode(second)})
		if u := c.Tokens().Units["air/eu"].Record; c.Regressed() != "" || !u.Resolved() || asked < 3 {
			t.Errorf("%s: resolved %t after %d questions, regressed %q", name, u.Resolved(), asked, c.Regressed())
		}
	}
}
