package replicate_test

import (
	"sync/atomic"
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
)

// What is recorded of a topic's incarnations while a policy keeps the topic back is told
// when the policy lets it go again, in the same run of the link.
func TestIncarnationsAreToldAgain(t *testing.T) {
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, map[string]string{"cleanup.policy": "compact"}, control.TopicControl)
	from.create(t, 1, nil, "orders")
	topic, err := txn.Describe(t.Context(), from.cl, "orders")
	if err != nil {
		t.Fatal(err)
	}
	first := control.Incarnation{Origin: us.ID, Topic: "orders", ID: event.TopicID(topic["orders"].ID)}
	var recorded atomic.Pointer[[]control.Incarnation]
	recorded.Store(&[]control.Incarnation{first})
	guard := residency.NewGuard(policy(t, 1, ordersOpen))
	cfg := config(from, to)
	cfg.Border = guard
	cfg.Incarnations = func(name string, _ int32) []control.Incarnation {
		if name != "orders" {
			return nil
		}
		return *recorded.Load()
	}
	l := start(t, cfg)
	heard := func(number uint16) bool {
		there, err := txn.Describe(t.Context(), to.cl)
		if _, made := there[control.ControlFrom("us")]; err != nil || !made {
			return false
		}
		for _, r := range to.read(t, control.ControlFrom("us"))[0] {
			if x, err := control.ParseIncarnation(r.Key, r.Value); err == nil && x.Topic == "orders" && x.Number == number {
				return true
			}
		}
		return false
	}
	eventually(t, "the first incarnation to be told", func() bool { return heard(0) })
	guard.Loaded(policy(t, 2, notOrders))
	eventually(t, "the topic to stay", func() bool { return l.Status().Topics == 0 })
	second := first
	second.Number, second.Truncations, second.End = 1, 1, 5
	recorded.Store(&[]control.Incarnation{first, second})
	guard.Loaded(policy(t, 3, ordersOpen))
	eventually(t, "the incarnation of meanwhile to be told", func() bool { return heard(1) })
}
