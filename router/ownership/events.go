package ownership

import "github.com/geogate/geogate/internal/event"

// An Event is something that happened to an instance.
type Event interface{ isEvent() }

// The events.
type (
	// Opened: the register was reached, and the watch begins. Created identifies
	// the stream, Last is its last sequence. Empty: it holds nothing, and begins past
	// Last.
	Opened struct {
		Created int64
		Last    uint64
		Empty   bool
	}
	// Seen: a message of the register, from one of three sources.
	Seen struct {
		Source  Source
		Subject string
		Seq     uint64 // 0: the register has none of the subject
		Data    []byte
	}
	// Written: what became of one attempt of a [Write].
	Written struct {
		Op      uint64
		Outcome Outcome
		Seq     uint64 // of the first attempt that was stored
	}
	// Listed answers a [List].
	Listed struct {
		Unit string
		Rev  uint64
		Ref  uint64
		Ends []Extent
		OK   bool
	}
	// Settled answers a [Settle].
	Settled struct {
		Unit  string
		Epoch event.Epoch
		Ends  []Extent
		OK    bool
	}
	// Applied answers an [AskApplied].
	Applied struct {
		Unit string
		Ref  uint64
		Ends []Extent
		OK   bool
	}
	// Judged answers an [AskJudged], with a part of the partitions if not all are known.
	Judged struct {
		Unit string
		Rev  uint64
		Logs []JudgedLog
		OK   bool
	}
	// CaughtUp answers an [AskCaughtUp]: Lacking says what the region has not caught up
	// with, "" if it has.
	CaughtUp struct {
		Rev     uint64
		Lacking string
	}
	// Recalled answers a [Recall].
	Recalled struct {
		Memory Memory
		OK     bool
	}
	// Raised answers a [Raise]: how far the register has come.
	Raised struct{ Last uint64 }
	// Persisted: the mark of this version is on disk.
	Persisted struct{ Version uint64 }
	// Slept: the machine was suspended.
	Slept struct{}
	// Paused: the process did not run for longer than a connection may be silent.
	Paused struct{}
	// Ask: an operator wants something. Ref names it in the [Answer].
	Ask struct {
		Ref     uint64
		Command Command
	}
	// Release: the instance stops; whatever it held it holds no more.
	Release struct{}
	// Wake: time has passed.
	Wake struct{}
)

func (Opened) isEvent()    {}
func (Seen) isEvent()      {}
func (Written) isEvent()   {}
func (Listed) isEvent()    {}
func (Settled) isEvent()   {}
func (Applied) isEvent()   {}
func (Judged) isEvent()    {}
func (CaughtUp) isEvent()  {}
func (Recalled) isEvent()  {}
func (Raised) isEvent()    {}
func (Persisted) isEvent() {}
func (Slept) isEvent()     {}
func (Paused) isEvent()    {}
func (Ask) isEvent()       {}
func (Release) isEvent()   {}
func (Wake) isEvent()      {}

// Source says where a message of the register comes from.
type Source uint8

// The sources.
const (
	// Watched: the watch has delivered it, in order.
	Watched Source = iota
	// Answered: the register was asked for its newest message of the subject. The
	// server that answered may lag; nothing follows about messages before it.
	Answered
	// Rumoured: another instance says so. It may be false.
	Rumoured
)

// Outcome is what is known of one attempt to write.
type Outcome uint8

// The outcomes.
const (
	Stored   Outcome = iota + 1 // by this attempt or an earlier one
	Conflict                    // the condition did not hold at the server that answered, which may be cut off and not know it
	Busy                        // somebody else's write is in flight: nothing is decided
	Unknown                     // no answer came
	TooLong                     // the register never takes so long a record
)

// An Effect is something that the adapter has to do, in order.
type Effect interface{ isEffect() }

// The effects.
type (
	// Write stores a message on condition that the newest one of subject Guard
	// has sequence Expect (0: there is none). Without Guard there is no
	// condition. A later attempt has the same Op and ID.
	Write struct {
		Op      uint64
		ID      string
		Subject string
		Data    []byte
		Guard   string
		Expect  uint64
	}
	// Read asks the register and the other instances for the newest message of a
	// subject; it comes as a Seen that is Answered or Rumoured.
	Read struct{ Subject string }
	// Recall asks what the region's own Kafka has copied of the register.
	Recall struct{}
	// Raise brings the register past a revision with messages that say nothing, so that
	// no revision that was seen is given twice.
	Raise struct{ To uint64 }
	// Broadcast tells all instances of a message, by the fastest way there is.
	Broadcast struct {
		Subject string
		Seq     uint64
		Data    []byte
	}
	// List asks where the own region's logs of a unit end now (high watermarks).
	// Rev is the revision that was known before, Ref the plan that asks.
	List struct {
		Unit string
		Rev  uint64
		Ref  uint64
	}
	// Settle waits until nothing is answered any more under the tokens that the
	// adapter was shown before this step, then lists like List.
	Settle struct {
		Unit  string
		Epoch event.Epoch
	}
	// AskApplied asks how much of a region's logs of a unit any other region has
	// applied.
	AskApplied struct {
		Unit   string
		Region string
		Ref    uint64
	}
	// AskJudged asks how far the own region's logs of a unit were judged, and where orphans
	// were met in them. Rev is the revision that was known before.
	AskJudged struct {
		Unit string
		Rev  uint64
	}
	// AskCaughtUp asks whether the region, which was returned, has caught up with all that
	// the others have settled while they did not wait for it. Rev is the revision of the
	// region's record; every unit's record is newer, and names it as retired no more.
	AskCaughtUp struct{ Rev uint64 }
	// Persist puts the mark on disk.
	Persist struct {
		Version uint64
		Mark    Mark
	}
	// Rewatch: the watch brings nothing; restart it after From. After some
	// that did not help, Reconnect asks for another server.
	Rewatch struct {
		From      uint64
		Reconnect bool
	}
	// Reopen: ask the register again what it is.
	Reopen struct{}
	// Answer answers an Ask.
	Answer struct {
		Ref    uint64
		Result Result
	}
)

func (Write) isEffect()       {}
func (Read) isEffect()        {}
func (Recall) isEffect()      {}
func (Raise) isEffect()       {}
func (Broadcast) isEffect()   {}
func (List) isEffect()        {}
func (Settle) isEffect()      {}
func (AskApplied) isEffect()  {}
func (AskJudged) isEffect()   {}
func (AskCaughtUp) isEffect() {}
func (Persist) isEffect()     {}
func (Rewatch) isEffect()     {}
func (Reopen) isEffect()      {}
func (Answer) isEffect()      {}
