package replicate

import (
	"fmt"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
)

// What happens.
type (
	// Start begins the first take-over.
	Start struct{}
	// Assigned replaces the list of streams. It may come at any time.
	Assigned struct{ Streams []Stream }
	// Inited ends Init.
	Inited struct{ Err error }
	// GenerationRead ends ReadGeneration.
	GenerationRead struct {
		Found Found
		Err   error
	}
	// PositionsRead ends ReadPositions: what the shard's slots hold, committed.
	PositionsRead struct {
		Positions []PositionRecord
		Incidents []Incident
		Err       error
	}
	// Listed ends List; a stream that is missing was not listed.
	Listed struct {
		Listings map[Part]Listing
		Err      error
	}
	// Fetched brings what was fetched in the reading with the number.
	Fetched struct {
		Reading int
		Parts   []FetchedPart
	}
	// PolicyChanged says which version of the residency policy is in force; it comes
	// before any other event that follows the change.
	PolicyChanged struct{ Version uint64 }
	// IntervalsChanged says what the ownership register knows of the streams'
	// partitions; nil for one that is in no unit. It comes before any other event that
	// follows the change, and before streams are assigned that it had not named.
	IntervalsChanged struct{ Tables map[Part]*event.ValidityTable }
	// Audited ends Audit.
	Audited struct{ Err error }
	// Produced ends Produce. Epochs are the leader epochs of the remote
	// partitions that got records, listed after the answers.
	Produced struct {
		Produced []txn.Produced
		Epochs   map[Part]int32
		Err      error
	}
	// Ended ends End.
	Ended struct{ Err error }
	// Tick says that time has passed; see Core.Wake.
	Tick struct{}
)

// FetchedPart holds items of one partition, in the order of its log. Err is a
// *SourceError for trouble with this partition alone; items come before it.
type FetchedPart struct {
	Part   Part
	Items  []Item
	Stable int64 // last stable offset of the source
	Err    error
}

// PositionRecord is a record of the positions topic.
type PositionRecord struct {
	Source event.TopicID
	Number int32
	offsets.Position
	// Malformed: there is nothing but a record that cannot be read.
	Malformed bool
}

// Listing is what both clusters say about a stream.
type Listing struct {
	SourceStart    int64 // first offset that the source still has
	Accepted       int64 // what was lost below it somebody goes on without; 0: nothing
	SourceEnd      int64 // its log end
	SourceEpochEnd int64 // end of the position's leader epoch at the source, -1 unknown
	Target         event.TopicID
	TargetEnd      int64
	TargetEpoch    int32 // leader epoch now, -1 unknown
	TargetEpochEnd int64 // end of the position's leader epoch at the target, -1 unknown
	Err            error // it could not be listed
}

// What to do.
type (
	// Init: initialise the shard's producer.
	Init struct{}
	// ReadGeneration: find the record to a high watermark listed from now on;
	// answered with GenerationRead.
	ReadGeneration struct{}
	// ReadPositions: read the shard's slots of the positions topic, committed, to
	// high watermarks listed from now on.
	ReadPositions struct{}
	// List: ask both clusters about streams, given their positions.
	List struct{ Streams []ListStream }
	// Read: drop what was being fetched and fetch from these offsets; Fetched
	// events carry the number.
	Read struct {
		Number int
		From   map[Part]ReadFrom
	}
	// Leave: stop fetching a partition.
	Leave struct{ Part Part }
	// Audit: store durably what was decided about stretches of streams, before any
	// of it is sent; answered with Audited.
	Audit struct{ Decided []Decided }
	// Produce: send the batches in the open transaction, then list the leader
	// epochs of Check.
	Produce struct {
		Batches []txn.PartitionBatch
		Check   []Stream
	}
	// End: commit the transaction.
	End struct{}
	// Report: log it for operators. Cause is the error that led to it, nil if none did.
	// Ended: a later look has proved that nothing was lost, or somebody has accepted that it
	// was, and the partition goes on.
	Report struct {
		Incident Incident
		Cause    error
		Ended    bool
	}
	// Stop: the shard's work is over; nothing may be sent any more.
	Stop struct{ Err error }
)

// Decided is what a ruling made of a stretch of a stream.
type Decided struct {
	Stream Stream
	Runs   []residency.Run
}

// ListStream is a stream to be listed.
type ListStream struct {
	Stream
	SourceEpoch, TargetEpoch int32 // of the committed position, -1 none
	Next                     int64 // the first offset that the stream needs
}

// ReadFrom says where the reading of a partition begins.
type ReadFrom struct {
	Stream Stream
	Offset int64
}

// SourceError says that one partition cannot be fetched further: a batch cannot be
// read (Corrupt), or else its leader or log has changed, so that the position must be
// validated first.
type SourceError struct {
	Corrupt error
	Offset  int64 // offset of the batch that cannot be read
}

// Error implements error.
func (e *SourceError) Error() string {
	if e.Corrupt != nil {
		return fmt.Sprintf("batch at %d: %v", e.Offset, e.Corrupt)
	}
	return "leader or log of the source partition changed"
}
