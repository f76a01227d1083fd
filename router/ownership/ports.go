package ownership

import (
	"context"
	"log/slog"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// UnitLogs are the logs of a unit's topics in the own region's Kafka, and what is
// known of other regions' logs.
type UnitLogs interface {
	// Ends lists the high watermarks of the unit's local partitions now.
	Ends(ctx context.Context, unit string) ([]Extent, error)
	// Settle returns once no write of the unit is being answered any more that was
	// found allowed before Settle was called.
	Settle(ctx context.Context, unit string) error
	// Applied is how much of the unit's logs of another region any region but that
	// one has applied.
	Applied(ctx context.Context, unit, region string) ([]Extent, error)
	// Judged is how the fold has judged the logs of the unit's local partitions. A partition
	// of which nothing is known may be left out, or have a zero JudgedLog.To.
	Judged(ctx context.Context, unit string) ([]JudgedLog, error)
	// CaughtUp says what the region, which was retired and returned, has not yet applied of
	// what the other regions may have settled without it; "" if it has everything. They
	// have settled nothing more without it once their progress shows that they have folded
	// what the register says now.
	CaughtUp(ctx context.Context) (lacking string, err error)
}

// JudgedLog says how the log of a local partition was judged: all of it below To, with the
// cuts of all epochs that end there known, and nothing from From on is an orphan.
type JudgedLog struct {
	Topic     string
	Partition int32
	From, To  event.Point
}

// Register is the ownership register as a [Client] uses it. All methods but Close
// may be called from several goroutines.
type Register interface {
	// Open makes the register, or finds the one that is there, and says what it is.
	Open(ctx context.Context) (Opened, error)
	// Write is one attempt; seq counts where the outcome is [Stored].
	Write(ctx context.Context, w Write) (o Outcome, seq uint64)
	// Read asks for the newest message of a subject; Seq is 0 where there is none. It
	// is not ok when there was no answer.
	Read(ctx context.Context, subject string) (s Seen, ok bool)
	// Watch delivers what follows a sequence, in order and one at a time, until the
	// context or the watch ends; it never returns nil. When it returns, deliver is
	// not running and will not be called. deliver returns once the context has ended.
	Watch(ctx context.Context, after uint64, deliver func(Seen)) error
	// Raise stores messages that say nothing until the register has come to a revision,
	// and gives how far it has come. It may be more than one that does it.
	Raise(ctx context.Context, to uint64) (last uint64, err error)
	// Broadcast tells all other instances, as far as they can be reached now.
	Broadcast(b Broadcast)
	// Ask asks all other instances for what is newer than a sequence.
	Ask(subject string, known uint64)
	// Reconnect goes to another server, if there is one.
	Reconnect()
	// Voters counts the servers of the register and those of them that keep up.
	Voters(ctx context.Context) (all, reachable int, err error)
	// LastWrite is how long the last write that was stored has taken; 0 before it.
	LastWrite() time.Duration
	// Close ends the connection. When it returns, no handler runs and none will be
	// called.
	Close()
}

// Handlers are what a register calls, each from a goroutine of its own; what is nil
// is not called.
type Handlers struct {
	// Connected: a connection was made, the first or a later one.
	Connected func()
	// Received: a broadcast of another instance has come.
	Received func(Seen)
	// Answered: another instance knows a newer message than was asked for.
	Answered func(Seen)
	// Newest is the newest message of a subject that is known here; seq 0: none.
	Newest func(subject string) (seq uint64, data []byte)
	// Beyond is the highest revision that was seen of the register: one that has to be
	// made, because it is gone, begins past it.
	Beyond uint64
}

// Mirror is the copy of the register in the region's own Kafka.
type Mirror interface {
	// Load reads what the copy has. It may be called at any time.
	Load(ctx context.Context) (Memory, error)
	// See takes a message of the register, in its order.
	See(ctx context.Context, s Seen)
	// Abandon says in the copy that the region gives the register up. Nothing is copied
	// any more.
	Abandon(ctx context.Context, reason string) error
	// Run writes what See takes until the context ends.
	Run(ctx context.Context) error
}

// Servers are the servers of a register that the gateways embed.
type Servers interface {
	// List gives those that the cluster counts as its own, running or not.
	List(ctx context.Context) ([]Server, error)
	// Remove takes one out for good. Another one, if there is one, gets its copy of the
	// register.
	Remove(ctx context.Context, name string) error
}

// Server is one of them.
type Server struct {
	// Name is "" if the cluster's leader has not heard of it since it leads. ID is the
	// cluster's, derived from the name.
	Name string `json:"name"`
	ID   string `json:"id"`
	// Leader: it leads the cluster. Current: it has all that was written. Offline: it is
	// not connected.
	Leader  bool `json:"leader"`
	Current bool `json:"current"`
	Offline bool `json:"offline"`
	// Silent is how long nothing was heard of it, in seconds.
	Silent float64 `json:"silent_seconds"`
}

// runs tells whether the server takes part.
func (s Server) runs() bool { return s.Leader || s.Current && !s.Offline }

// ClientConfig configures a [Client]. All members but Orphans, Servers and ServerID are
// required.
type ClientConfig struct {
	Region   string
	ID       event.RegionID
	Regions  *router.Topology
	Instance string
	// Policy says which units the region claims.
	Policy  *Policy
	Lease   LeaseConfig
	DataDir string // holds the high-water mark
	// Join is how many ended epochs of the region a unit's record has before they are
	// joined; 0 is 8.
	Join int
	// Dial connects with the register, which need not be there yet.
	Dial func(Handlers) (Register, error)
	// Voters is how many servers the register should have.
	Voters int
	// Servers lists and removes the servers of an embedded register; nil: the register is
	// on a NATS cluster of the operator's own. ServerID gives the id that the cluster has
	// for a server's name.
	Servers  Servers
	ServerID func(name string) string
	Mirror   Mirror
	Logs     UnitLogs
	// Orphans gives the orphans that this region has met, by unit, for the
	// metrics; nil: not known.
	Orphans func() map[string]uint64
	Logger  *slog.Logger
}
