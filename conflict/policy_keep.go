package conflict

import "github.com/geogate/geogate/internal/event"

// keep keeps all live values: the greatest in the total order of writes is shown, the
// others are its siblings, with their values, until a write that has seen them
// replaces them. Regions that were shown different siblings would not come to the
// same value, so residency may not deny single records.
func keep() Policy {
	return Policy{Rule: event.Keep, Name: "keep", Winner: greatest, ShowsSiblings: true}
}
