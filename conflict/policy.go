package conflict

import (
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// Policy is one way to resolve concurrent writes of an entity. Each has a file of its
// own, policy_NAME.go, that says all of what follows; whoever treats policies
// differently asks here.
type Policy struct {
	// Rule is the policy's number in header gg-m and in states. It is never reused.
	Rule event.Rule
	// Name is what the ownership file (policy:), answers and the conflict feed call it.
	Name string
	// Winner is the index in live of the value that is shown, -1 if nothing is live. It
	// must depend on the set of live values alone: every region calls it with the same
	// set and must come to the same value.
	Winner func(live []Live) int
	// ReportsLosers: a live value that is not shown has lost, and the conflict feed
	// names it. Else it stays a sibling that nobody has lost.
	ReportsLosers bool
	// ShowsSiblings: answers have the values of the live values that are not shown.
	ShowsSiblings bool
	// Restrictable: regions come to the same value although residency denies some of
	// them single records of the topic. Where it is false such rules block the topic.
	Restrictable bool
}

// Policies lists every policy, the default first. It is where a new one is registered.
func Policies() []Policy { return []Policy{lww(), keep()} }

// PolicyNames lists the names of all policies, the default first.
func PolicyNames() []string {
	var names []string
	for _, p := range Policies() {
		names = append(names, p.Name)
	}
	return names
}

// PolicyNamed is the policy of a name in the ownership file; "" is the default.
func PolicyNamed(name string) (Policy, bool) {
	for _, p := range Policies() {
		if p.Name == name || name == "" {
			return p, true
		}
	}
	return Policy{}, false
}

// PolicyOf is the policy of a rule. For a number that this build does not know it is
// one that shows the greatest value and does nothing else.
func PolicyOf(rule event.Rule) Policy {
	for _, p := range Policies() {
		if p.Rule == rule {
			return p
		}
	}
	return Policy{Rule: rule, Name: fmt.Sprintf("rule-%d", uint8(rule)), Winner: greatest}
}

// greatest is the index of the greatest value in the total order of writes.
func greatest(live []Live) int {
	win := -1
	for i := range live {
		if win < 0 || event.Less(&live[win].Event, &live[i].Event) {
			win = i
		}
	}
	return win
}
