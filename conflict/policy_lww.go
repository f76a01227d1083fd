package conflict

import "github.com/geogate/geogate/internal/event"

// lww is last writer wins: the greatest of the live values in the total order of
// writes (stamp, region, event id) is shown, and the others have lost.
func lww() Policy {
	return Policy{Rule: event.LWW, Name: "lww", Winner: greatest, ReportsLosers: true, Restrictable: true}
}
