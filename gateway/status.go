package gateway

import (
	"context"
	"time"

	"github.com/geogate/geogate/internal/warning"
)

// StatusSource reports the state of the instance.
type StatusSource interface {
	// Status reports the present state. What cannot be found out in time is null or
	// unreachable in it, not an error.
	Status(ctx context.Context) (Status, error)
}

// Status is the answer of GET /v1/status on the management listener, and what
// geogate status prints. Members that are not known are null, never 0.
type Status struct {
	Version  string    `json:"version"`
	Time     Time      `json:"time"`
	Region   string    `json:"region"`
	Instance string    `json:"instance"`
	Mode     string    `json:"mode"` // solo, paired, quorum
	Register *Register `json:"register"`
	// Regions are in the order of their ids, the other lists by name.
	Regions   []RegionStatus `json:"regions"`
	Links     []LinkStatus   `json:"links"`
	Units     []UnitStatus   `json:"units"`
	Residency Residency      `json:"residency"`
	// Writes are the topics that had any in the last minutes.
	Writes []WriteStatus `json:"writes"`
	// Frontiers are the topics of which something is kept because it is not settled.
	Frontiers []FrontierStatus `json:"frontiers"`
	// Warnings are what an operator should know, errors first.
	Warnings []warning.Warning `json:"warnings"`
}

// complete makes lists without entries empty rather than null, which would mean
// unknown.
func (st Status) complete() Status {
	st.Regions, st.Links = append([]RegionStatus{}, st.Regions...), append([]LinkStatus{}, st.Links...)
	st.Units, st.Warnings = append([]UnitStatus{}, st.Units...), append([]warning.Warning{}, st.Warnings...)
	st.Writes, st.Frontiers = append([]WriteStatus{}, st.Writes...), append([]FrontierStatus{}, st.Frontiers...)
	for i := range st.Links {
		st.Links[i].Parked = append([]ParkedStatus{}, st.Links[i].Parked...)
		st.Links[i].Stopped = append([]StoppedStatus{}, st.Links[i].Stopped...)
	}
	return st
}

// Time is a point in time in the form of all answers: RFC 3339, UTC,
// milliseconds.
type Time time.Time

// MarshalText implements encoding.TextMarshaler.
func (t Time) MarshalText() ([]byte, error) {
	return []byte(formatTime(time.Time(t).UnixMilli())), nil
}

// UnmarshalText implements encoding.TextUnmarshaler; it takes any RFC 3339 time.
func (t *Time) UnmarshalText(text []byte) error { return (*time.Time)(t).UnmarshalText(text) }

// Register is the state of the ownership register; null where there is none.
type Register struct {
	State     string   `json:"state"` // ok, unreachable, regressed
	Voters    int      `json:"voters"`
	Reachable int      `json:"reachable"`
	WriteMS   *float64 `json:"write_ms"`
}

// RegionStatus is one region as this instance sees it.
type RegionStatus struct {
	Name      string  `json:"name"`
	ID        uint8   `json:"id"`
	State     string  `json:"state"` // UP, FENCED, RETIRED, RETURNED
	LiveEpoch *uint64 `json:"live_epoch"`
	Kafka     string  `json:"kafka"` // ok, unreachable
	// Gateway is whether the region's gateway is heard of: running, stopped, gone (silent
	// for too long) or unknown; GatewaySilent is for how long it was not.
	Gateway       string   `json:"gateway"`
	GatewaySilent *float64 `json:"gateway_silent_seconds"`
	// Retired is set from when the region is retired until it has caught up after its return.
	Retired *RetiredStatus `json:"retired,omitempty"`
}

// RetiredStatus is who retired a region, when and why.
type RetiredStatus struct {
	Since  Time   `json:"since"`
	By     string `json:"by"` // region
	Reason string `json:"reason"`
	// Lacks is what the region has not caught up with; known in the region itself only, "" elsewhere
	// and until it was returned.
	Lacks string `json:"lacks,omitempty"`
}

// LinkStatus is one link that this instance runs or knows of.
type LinkStatus struct {
	Name           string   `json:"name"`
	From           string   `json:"from"`
	To             string   `json:"to"`
	State          string   `json:"state"` // running, paused, parked, failed
	Topics         int      `json:"topics"`
	LagRecords     *int64   `json:"lag_records"`
	LagSeconds     *float64 `json:"lag_seconds"`
	Copied         uint64   `json:"copied"` // records of data; batches too
	ControlRecords uint64   `json:"facts"`  // control records copied
	PassedBatches  uint64   `json:"passed_batches"`
	OpenedBatches  uint64   `json:"opened_batches"`
	Denied         uint64   `json:"denied"`
	// Orphans counts the records that were left out because they lie past a cut.
	// Stopped are the partitions that have stopped at one, because it is not known
	// yet which records past it count.
	Orphans uint64          `json:"orphans"`
	Parked  []ParkedStatus  `json:"parked"`
	Stopped []StoppedStatus `json:"standing"`
}

// StoppedStatus is a partition that a link has stopped copying, and why.
type StoppedStatus struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Unit      string `json:"unit"`
	Offset    int64  `json:"at"` // of the origin's log; the first that is not copied
	Reason    string `json:"reason"`
}

// ParkedStatus is a partition that a link holds back.
type ParkedStatus struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Reason    string `json:"reason"`
	Since     Time   `json:"since"`
}

// WriteStatus is how the writes of a topic through this instance fared in the last
// minutes.
type WriteStatus struct {
	Topic   string  `json:"topic"`
	Seconds float64 `json:"seconds"` // that are looked back on
	Stored  int     `json:"stored"`  // records; replays are not counted
	// P50 and P99 are upper bounds of how long these took; null if there were none.
	P50 *float64 `json:"p50_ms"`
	P99 *float64 `json:"p99_ms"`
	// Refused are records that were not stored, or of which that is not known, by
	// problem code.
	Refused map[string]int `json:"refused"`
}

// FrontierStatus is what of a topic is not settled, so that the region has to keep what a
// fence or a repeated write may bring back, and what holds it: in the partition of which most
// is kept.
type FrontierStatus struct {
	Topic     string `json:"topic"`
	Offsets   int64  `json:"offsets"` // of all logs and partitions, above the frontier
	Needed    int64  `json:"needed"`  // of all logs and partitions, that must be read again if the store is lost
	Partition int32  `json:"partition"`
	Origin    string `json:"origin"` // of whose log most is kept there
	// HeldBy is why: fold (a region has not folded it), unheard (nothing that a region has
	// told can be used), floor (the origin does not know yet that all have it), twin (copies
	// of an idempotency key) or store (the own store is being filled again). Region is whose
	// word is missing, null where there is none.
	HeldBy string  `json:"held_by"`
	Region *string `json:"region"`
	Since  Time    `json:"since"` // no earlier than the start of the instance
}

// UnitStatus is one unit of ownership.
type UnitStatus struct {
	Unit         string   `json:"unit"`
	Owner        *string  `json:"owner"`
	Epoch        uint64   `json:"epoch"`
	State        string   `json:"state"` // ACTIVE, DRAINING, SEALED, FENCED, PREPARING
	LeaseSeconds *float64 `json:"lease_seconds"`
	Orphans      uint64   `json:"orphans"`
}

// Residency is the residency policy in force.
type Residency struct {
	State    string `json:"state"` // off, on, stopped
	Name     string `json:"name,omitempty"`
	Revision int64  `json:"revision,omitempty"`
	SHA256   string `json:"sha256,omitempty"`
}

// TopicList is the answer of GET /v1/topics on the management listener.
type TopicList struct {
	Topics []TopicEntry `json:"topics"`
	Next   *string      `json:"next"`
	End    bool         `json:"end"`
}

// TopicEntry says what a topic is in this region and what each link does with it.
type TopicEntry struct {
	Name       string `json:"name"`
	Role       string `json:"role"` // local, remote, derived, internal, unknown
	Partitions int32  `json:"partitions"`

	// Local topics.
	Domain string      `json:"domain,omitempty"`
	Kind   string      `json:"kind,omitempty"` // events, entity
	Policy string      `json:"policy,omitempty"`
	Links  []TopicLink `json:"links,omitempty"`
	// Blocked is why the region cannot make what it derives from the topic.
	Blocked string `json:"blocked,omitempty"`

	// Remote and derived topics.
	Origin string `json:"origin,omitempty"` // region that a remote topic comes from
	Of     string `json:"of,omitempty"`     // topic that it is a copy of or made from
	Use    string `json:"use,omitempty"`    // merged, state, dead-letter, orphans, feed
}

// TopicLink is what a link does with a local topic, and why.
type TopicLink struct {
	Link  string `json:"link"`
	State string `json:"state"` // included, excluded, denied, blocked
	// Rule is what decided: a pattern like `include "*"`, with a residency policy
	// what its rules say, or for blocked the reason.
	Rule string `json:"rule"`
}
