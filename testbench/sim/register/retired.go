package register

import (
	"slices"

	"github.com/geogate/geogate/router/ownership"
)

// checkRetired (I18): who reads the logs of a unit waits for no region that the unit's record
// names as retired, so that region sets no cut of the unit, and owns it never. Once a record
// names it no more it does neither, before it has said that it has caught up.
func (r *Stream) checkRetired(p *Instance, w ownership.Write, u *ownership.UnitRecord) {
	before := r.units[u.Unit]
	n := len(before.Epochs)
	cut := n > 0 && !before.Epochs[n-1].Ended && len(u.Epochs) >= n && u.Epochs[n-1].Ended
	claimed := u.Owner != "" && u.Owner == p.Region && u.Epoch != before.Epoch
	if slices.Contains(u.Retired, p.Region) || r.absent[p.Region] {
		if cut {
			r.Violate("I18", "%s cuts epoch %d of %s, whose readers do not wait for its region", p.Name, u.Epochs[n-1].Epoch, u.Unit)
		}
		if claimed {
			r.Violate("I18", "%s claims %s, whose readers do not wait for its region", p.Name, u.Unit)
		}
	}
	for _, region := range u.Retired {
		if slices.Contains(before.Retired, region) {
			continue
		}
		x, ok := r.Region(region)
		known := r.last[ownership.RegionSubject(region)] < w.Expect // by whoever wrote the record before
		if ok && x.State != ownership.RegionRetired && (known || !r.absent[region]) {
			r.Violate("I18", "the record of %s, by %s, names region %s as retired, which is %s", u.Unit, p.Name, region, x.State)
		}
		r.absent[region] = true
		r.Count("units' records that name a retired region")
	}
}

// checkCaughtUp notes that a region has caught up since it was returned.
func (r *Stream) checkCaughtUp(p *Instance, w ownership.Write) {
	x, err := ownership.DecodeRegion(w.Data)
	if err != nil || ownership.RegionSubject(x.Region) != w.Subject {
		return
	}
	switch {
	case x.State == ownership.RegionReturned || x.State == ownership.RegionRetired || !r.absent[x.Region]:
	case (r.caughtUp[x.Region] == 0 || r.caughtUp[x.Region] != w.Expect) && !r.forgot:
		r.Violate("I18", "%s writes that region %s is %s, which has not caught up since it was returned", p.Name, x.Region, x.State)
	default:
		r.Count("regions that have caught up")
		delete(r.absent, x.Region)
		delete(r.caughtUp, x.Region)
		for unit := range r.units {
			if u := r.units[unit]; slices.Contains(u.Retired, x.Region) && !r.forgot {
				r.Violate("I18", "region %s has caught up, and the record of %s names it as retired", x.Region, unit)
			}
		}
	}
}

// CaughtUp notes that a region is told that it has caught up.
func (r *Stream) CaughtUp(region string) {
	r.caughtUp[region] = r.last[ownership.RegionSubject(region)]
}
