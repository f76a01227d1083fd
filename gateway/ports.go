package gateway

import (
	"context"
	"errors"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router/ownership"
)

// What the gateway needs of the rest of an instance. The instance implements
// these; their errors are mapped to problems in problem.go.

// Errors that implementations of the interfaces below return, wrapped or not,
// beside those of package seat.
var (
	// ErrTopicUnknown: no local topic of this name exists in the region.
	ErrTopicUnknown = errors.New("gateway: topic is unknown")
	// ErrTopicBlocked: something stands in the way of a topic that is derived from this
	// one, and only an operator can mend it.
	ErrTopicBlocked = errors.New("gateway: topic is blocked")
	// ErrUpstream: Kafka could not be reached, or answered with an error.
	ErrUpstream = errors.New("gateway: upstream unavailable")
)

// ErrNotForgotten: there is nothing to forget of a topic, or it must not be forgotten. The
// text of the error that wraps it says why.
var ErrNotForgotten = errors.New("gateway: nothing is forgotten")

// UnknownTopic is an ErrTopicUnknown about a name that is not a local topic's but
// that the instance knows: it says what to ask for instead.
type UnknownTopic struct {
	Topic  string
	Detail string // what the topic is, and what to ask for instead
}

// Error implements error.
func (u *UnknownTopic) Error() string {
	return ErrTopicUnknown.Error() + ": " + u.Topic + ": " + u.Detail
}

// Unwrap makes it an ErrTopicUnknown.
func (u *UnknownTopic) Unwrap() error { return ErrTopicUnknown }

// Topic is a local topic of the region.
type Topic struct {
	Name string
	ID   event.TopicID // in this region's cluster
	// Partitions is over how many partitions keys are spread.
	Partitions int32
	// Local is how many partitions of the log are used, Span how many the view has: of an
	// events topic, as many as any region's log. Those from Local on have no log here,
	// and nothing is written to them. 0 is as many as Partitions.
	Local, Span int32
	// Held says why the topic takes no writes, and its views lack other regions' records;
	// "" if it is not held.
	Held   string
	Domain ownership.Domain
	Limit  RecordLimit
}

// RecordLimit is the largest record that a topic and all that is derived from it take.
type RecordLimit struct {
	Bytes int64  // 0: not known
	Topic string // whose max.message.bytes it comes from
}

// LocalPartitions is how many partitions of the topic's log are used.
func (t Topic) LocalPartitions() int32 { return max(t.Partitions, t.Local) }

// ViewPartitions is how many partitions the topic's view has.
func (t Topic) ViewPartitions() int32 { return max(t.LocalPartitions(), t.Span) }

// Topics knows the local topics.
type Topics interface {
	// Topic finds a local topic. Internal, remote and derived topics, and any
	// name that is not a topic's, are ErrTopicUnknown, as an UnknownTopic where
	// there is more to say.
	Topic(ctx context.Context, name string) (Topic, error)
	// List describes every topic of the region, for people, sorted by name.
	List(ctx context.Context) ([]TopicEntry, error)
}

// Forgetter forgets local topics that were deleted.
type Forgetter interface {
	// Forget ends what runs for a local topic that was deleted and deletes what was
	// derived from it; it gives the names of those topics. The error wraps
	// ErrNotForgotten when nothing was done.
	Forget(ctx context.Context, topic string) (deleted []string, err error)
}

// ErrNoRegister: the instance has no ownership register, so nothing can be fenced.
var ErrNoRegister = errors.New("gateway: there is no ownership register")

// ErrUnread: the ownership register has not been read yet, so nothing can be said
// of it.
var ErrUnread = errors.New("gateway: the ownership register has not been read")

// Ownership knows who may write what.
type Ownership interface {
	// Check says whether this region may write a unit now: nil, an error that
	// wraps ownership.ErrUnproven, or a *ownership.NotOwnerError. It refuses
	// early; the seat's own check decides.
	Check(unit string) error
	// Units are the newest records that are known, ordered by unit. Until the
	// register has been read it is ErrUnread.
	Units() ([]UnitView, error)
	// Intervals is the newest that is known of which records of a partition's logs
	// count; nil where no register says so, and every record does.
	Intervals(topic string, partition int32) *event.ValidityTable
	// Orphans calls fn for the orphans of a unit that this region has met, in order
	// starting after a place, until fn returns false.
	Orphans(unit string, after OrphanPlace, fn func(at OrphanPlace, o *conflict.Orphaned) bool) error
	// Command has a fence or an unfence carried out. Its error is ErrNoRegister.
	Command(ctx context.Context, cmd ownership.Command) (ownership.Result, error)
	// Report says how the register is. Its error is ErrNoRegister.
	Report(ctx context.Context) (ownership.RegisterReport, error)
	// Act has something done to the register itself. Its error is ErrNoRegister.
	Act(ctx context.Context, act ownership.RegisterAct) (ownership.RegisterPlan, error)
}

// UnitView is a unit's record in the register with its revision.
type UnitView struct {
	Revision uint64
	Record   ownership.UnitRecord
}

// Seats gives the seats of this instance.
type Seats interface {
	// Open finds the seat of a partition and starts it, with its view, if it is
	// the first to ask; it may be called for every request. It returns once the
	// view has loaded what it had committed (so that an entity that it does not
	// know is unknown), which is before the seat is ready to accept writes.
	Open(ctx context.Context, topic string, partition int32) (Seat, error)
}

// Seat takes the writes of a partition and has its view.
type Seat interface {
	// Write stores a record and answers once it was read back; *seat.Seat does.
	// ctx bounds the wait for the answer; a produce that has started goes on
	// without it.
	Write(ctx context.Context, req *seat.Request) (seat.Answer, error)
	// Submit has records stored and never blocks; Cancel says that nobody waits for the
	// answers any more. Both promise what the methods of *seat.Seat do.
	Submit(ws []seat.Submission)
	Cancel(ws []seat.Submission)
	// CaughtUp waits until the view shows what the topic held before the seat was
	// first made, so that a view that has not started is not taken for an empty one.
	// It returns at once when that is long past, also if ctx has ended, and an
	// error that wraps seat.ErrNotReady when ctx ends first.
	CaughtUp(ctx context.Context) error
	// Complete tells whether the view has what the logs of all regions hold, as far as
	// they have been copied: none of them is one that cannot be read.
	Complete() bool
	// View is the merged view of the partition.
	View() View
	// Fetch gives an event from its origin's log, or from the copy of that log in
	// this region. The error wraps view.ErrGone if neither has it any more.
	Fetch(ctx context.Context, at event.Dot) (event.Event, error)
}

// View is the merged view of one partition: the fold's state, and how the merged
// topic relates to it. *view.View is one.
type View interface {
	// Committed is how far each origin's log is folded: all that lies below it is
	// in the state and in the merged topic.
	Committed() (event.Vector, seat.Barriers)
	// Wait blocks until Committed covers v, or returns ctx's error, or the one
	// with which the view has ended.
	Wait(ctx context.Context, v event.Vector) error
	// Entity is the state of an entity at Committed or later. ok is false if
	// there is nothing of it. Of live values that are LeftOut, Seat.Fetch has the rest.
	Entity(ctx context.Context, key []byte) (s conflict.State, ok bool, err error)
	// Checkpoints are places of the merged topic's partition with what is folded
	// there, in ascending order and as sparse as the view likes. The start of
	// the partition, where nothing is folded, is not among them.
	Checkpoints() []view.Checkpoint
	// Aliases are the other copies of the write whose record in the merged topic
	// has the dot: covering one of them is having seen it.
	Aliases(at event.Dot) ([]event.Dot, error)
	// NextAliased is the first dot, from one on in its incarnation of its log, that
	// Aliases has something for; found is false if there is none.
	NextAliased(at event.Dot) (next event.Dot, found bool, err error)
	// Validity is the table by which Committed was folded: what it calls an orphan
	// does not count in the view. nil: everything does.
	Validity() *event.ValidityTable
	// Orphan is what the view keeps of an orphan that it has met.
	Orphan(at event.Dot) (o conflict.Orphaned, ok bool, err error)
}

var _ View = (*view.View)(nil)

var _ Logs = (*control.Follower)(nil)

// Logs relates this region's local and remote topics to the logs of the origins;
// *control.Follower does.
type Logs interface {
	// Incarnation is the present incarnation of a local partition's log.
	Incarnation(topic string, id event.TopicID, partition int32) uint16
	// IsBarrier tells whether a commit marker of a local partition, met by its
	// producer id and epoch, is a barrier. The verdict never changes; the only
	// error is ctx's.
	IsBarrier(ctx context.Context, topic event.TopicID, partition int32, producer int64, epoch int16) (bool, error)
	// Remote is the topic that holds another region's records of a local topic.
	Remote(origin event.RegionID, source string) (control.Topic, bool)
	// Locate says where in the origin's log a record of a remote topic lies.
	Locate(from event.RegionID, remote event.TopicID, partition int32, target int64, epoch int32) control.Location
	// TargetOffsetFrom is the first offset in a remote partition whose record lies at or
	// after a place of the origin's log, if there is one yet.
	TargetOffsetFrom(from event.RegionID, remote event.TopicID, partition int32, incarnation uint16, source int64) (target int64, ok bool)
	// Covered is how far a reader may move its place in the origin's log once it
	// has read the remote partition below Target.
	Covered(from event.RegionID, remote event.TopicID, partition int32) (control.Covered, bool)
	// Changed is closed at the next change of any of these.
	Changed() <-chan struct{}
}

// Probe is one part of the instance as readiness sees it.
type Probe struct {
	Name string
	// Writes is set for what only writes need: readiness for reads leaves it out.
	Writes bool
	// Ready returns nil, or why the part cannot serve. Remote regions and links
	// are not readiness: one region's outage must not take the others out.
	Ready func(ctx context.Context) error
}
