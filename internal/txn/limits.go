package txn

import (
	"cmp"
	"errors"
	"fmt"
)

// Limits bound the batches, and the records in them, that are decoded. They are settings
// of the deployment: what one region refuses as too large, the others must not fold. The
// zero value of each is its default.
type Limits struct {
	// BatchUnfolded bounds the memory that a batch takes: its records decompressed,
	// and for each record and header what holds it ([RecordCost], [HeaderCost]).
	BatchUnfolded int
	// RecordHeaders is how many headers a record may have, those of its envelope
	// included; HeaderBytes how long their names and values may be together.
	RecordHeaders int
	HeaderBytes   int
	// Key is how long a record's key may be.
	Key int
}

// The defaults of Limits.
const (
	DefaultBatchUnfolded = 64 << 20
	DefaultRecordHeaders = 10_000
	DefaultHeaderBytes   = 1 << 20
	DefaultKey           = 32 << 10
)

// What a record and a header count beside their bytes.
const (
	RecordCost = 256
	HeaderCost = 48
)

// What a gateway adds to a record at most: the headers of an envelope, and what it adds in
// a derived topic. Writes leave room for them; a native record has them in a derived topic
// beside as many as the limits allow.
const (
	AddedHeaders     = 16
	AddedHeaderBytes = 1 << 10

	addedKey   = 64       // a state record's key holds that of a record
	addedBatch = 32 << 20 // a batch of our own of many records with nothing but headers
)

// derived are the limits of a topic that a gateway derives from others. What it wrote from
// records within the limits can be read.
func (l Limits) derived() Limits {
	return Limits{
		BatchUnfolded: l.BatchUnfolded + addedBatch, RecordHeaders: l.RecordHeaders + AddedHeaders,
		HeaderBytes: l.HeaderBytes + AddedHeaderBytes, Key: l.Key + addedKey,
	}
}

// WithDefaults gives the limits in force.
func (l Limits) WithDefaults() Limits {
	return Limits{
		BatchUnfolded: cmp.Or(l.BatchUnfolded, DefaultBatchUnfolded),
		RecordHeaders: cmp.Or(l.RecordHeaders, DefaultRecordHeaders),
		HeaderBytes:   cmp.Or(l.HeaderBytes, DefaultHeaderBytes),
		Key:           cmp.Or(l.Key, DefaultKey),
	}
}

// ErrBeyondLimits is wrapped by every error about a batch or record that is whole,
// as far as anybody looked, but larger than [Limits] allow. The texts name sizes,
// never content.
var ErrBeyondLimits = errors.New("txn: beyond a limit of the deployment")

// ErrBusy is returned where other readers use all of the memory for large batches.
var ErrBusy = errors.New("txn: other reads use all of the memory for large batches")

func beyond(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrBeyondLimits}, args...)...)
}
