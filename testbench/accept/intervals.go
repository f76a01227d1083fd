//go:build unix

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
)

// What the register says of the logs, read as plainly as possible: a record
// counts if its offset lies in the interval of the epoch that it names,
// and that epoch was its region's. The product has the same in a form that it can
// ask for every record; this is to find out whether both say the same.

// unitOf is the unit that a region's own log of a topic belongs to.
func unitOf(topic, region string) string {
	domain := map[string]string{
		flightsTopic: "air/", githubTopic: "repos/", ordersTopic: "orders/", patientsTopic: "health/", privateTopic: "health/",
		catalogueTopic: "catalogue",
	}[topic]
	if strings.HasSuffix(domain, "/") {
		return domain + region
	}
	return domain
}

// offsetIn is what a list of extents says of a partition.
func offsetIn(list []extent, topic string, at event.Dot) (offset int64, ok bool) {
	i := slices.IndexFunc(list, func(e extent) bool { return e.Topic == topic && e.Incarnation == at.Incarnation })
	if i < 0 || int(at.Partition) >= len(list[i].Offsets) || list[i].Offsets[at.Partition] < 0 {
		return 0, false
	}
	return list[i].Offsets[at.Partition], true
}

// authoritative tells whether an event of a topic, accepted by a region under an
// epoch of the unit, counts; if not, why.
func (u unit) authoritative(topic, region string, at event.Dot, epoch event.Epoch) (bool, string) {
	for i, e := range u.Epochs {
		if n := uint64(epoch); n != e.Epoch && (e.First == 0 || n < e.First || n > e.Epoch) {
			continue
		}
		start, _ := offsetIn(e.Start, topic, at)
		cut, ok := offsetIn(e.Cut, topic, at)
		if e.Ended && !ok { // nobody else is given the topic: it goes on to the next epoch
			e.Ended = i+1 < len(u.Epochs)
			if e.Ended {
				cut, _ = offsetIn(u.Epochs[i+1].Start, topic, at)
			}
		}
		switch {
		case e.Owner != region:
			return false, fmt.Sprintf("epoch %d was %s's", epoch, e.Owner)
		case at.Offset < start:
			return false, fmt.Sprintf("epoch %d begins at %d", epoch, start)
		case e.Ended && at.Offset >= cut:
			return false, fmt.Sprintf("epoch %d was cut at %d", epoch, cut)
		}
		return true, ""
	}
	return false, fmt.Sprintf("epoch %d is none of %s", epoch, u.Unit)
}

// judged is a record of an origin log with what the register says of it.
type judged struct {
	client.Logged
	topic, region string
	orphan        bool
	why           string
}

// judge applies the register to the origin logs of a topic.
func judge(topic string, regions map[string]*origin, units map[string]unit) (all []judged, err error) {
	for name, o := range regions {
		u, ok := units[unitOf(topic, name)]
		for _, rec := range o.all {
			j := judged{Logged: rec, topic: topic, region: name}
			if !ok {
				return nil, fmt.Errorf("log of %s in %s has records, the register has no unit %s", topic, name, unitOf(topic, name))
			}
			if !rec.Void {
				var counts bool
				counts, j.why = u.authoritative(topic, name, rec.At, rec.Event.Epoch)
				j.orphan = !counts
			}
			all = append(all, j)
		}
	}
	return all, nil
}
