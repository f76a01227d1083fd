package replicate

import "fmt"

// Agreement is the protocol by which an instance comes to run a link under a
// generation. It is pure: Step takes what happened and says what to do next.
//
// The order is what makes it safe: the record with Fenced false is written before any
// old id is initialised, so that a shard of the old generation that initialises
// its id again afterwards finds the change when it reads the record, as it must
// before it fetches. For the same reason a link that finds a finished record with the wanted
// values need not initialise the record's producer: the shards notice whoever changes the
// record afterwards.
type Agreement struct {
	shards  int    // wanted; 0 takes what the record says
	cluster string // of the source
	now     Generation
	phase   agreementPhase
}

type agreementPhase uint8

const (
	agreeNew agreementPhase = iota
	agreePeek
	agreeInit
	agreeRead
	agreeAnnounce
	agreeFence
	agreeConfirm
	agreeDone
)

// DefaultShards is the number of shards of a link that says nothing else. Each
// shard commits by itself, and most of a small transaction's cost at the target is
// the same however much it holds: four shards make records several times as old as
// one does, and between single brokers catch up no faster.
const DefaultShards = 1

// NewAgreement begins for a link that wants a number of shards, 0 for whatever
// the record says, and copies from a cluster.
func NewAgreement(shards int, cluster string) *Agreement {
	return &Agreement{shards: shards, cluster: cluster}
}

// What an Agreement asks for.
type (
	// PeekGeneration: read what is committed of the record now.
	PeekGeneration struct{}
	// InitGeneration: initialise the producer of the generation record.
	InitGeneration struct{}
	// FindGeneration: read the record to a high watermark listed from now on.
	FindGeneration struct{}
	// WriteGeneration: write the record in one transaction of that producer.
	WriteGeneration struct{ Record Generation }
	// FenceShards: initialise every id of the generation, so that nobody else
	// can go on under it.
	FenceShards struct {
		Number uint64
		Shards int
	}
	// Agreed: run the link under this record.
	Agreed struct{ Record Generation }
)

// Found is what FindGeneration or PeekGeneration found.
type Found struct {
	Record Generation
	Exists bool // there is one
}

// Step tells that the last effect was carried out (found matters only after
// FindGeneration and PeekGeneration) and returns the next one. The first call takes nil. An
// error is final. If an effect failed, begin with a new Agreement.
func (a *Agreement) Step(found *Found) (effect any, err error) {
	switch a.phase {
	case agreeNew:
		a.phase = agreePeek
		return PeekGeneration{}, nil
	case agreePeek:
		if found != nil && found.Exists && a.wanted(&found.Record) {
			a.phase, a.now = agreeDone, found.Record
			return Agreed{a.now}, nil
		}
		a.phase = agreeInit
		return InitGeneration{}, nil
	case agreeInit:
		a.phase = agreeRead
		return FindGeneration{}, nil
	case agreeRead:
		return a.decide(found)
	case agreeAnnounce:
		a.phase = agreeFence
		return FenceShards{a.now.Previous, a.now.PreviousShards}, nil
	case agreeFence:
		a.phase = agreeConfirm
		a.now.Fenced = true
		return WriteGeneration{a.now}, nil
	case agreeConfirm, agreeDone:
		a.phase = agreeDone
	}
	return Agreed{a.now}, nil
}

// wanted tells whether a record needs no change.
func (a *Agreement) wanted(g *Generation) bool {
	return g.Fenced && g.Cluster == a.cluster && (a.shards == 0 || a.shards == g.Shards)
}

func (a *Agreement) decide(found *Found) (any, error) {
	if found == nil || !found.Exists {
		shards := a.shards
		if shards == 0 {
			shards = DefaultShards
		}
		a.phase = agreeAnnounce
		a.now = Generation{Number: 1, Shards: shards, Cluster: a.cluster}
		return WriteGeneration{a.now}, nil
	}
	a.now = found.Record
	switch {
	case a.now.Cluster != a.cluster:
		return nil, fmt.Errorf("%w: it names cluster %q, this source is %q", ErrSettings, a.now.Cluster, a.cluster)
	case !a.now.Fenced:
		// Whoever finds it unfinished finishes it.
		a.phase = agreeFence
		return FenceShards{a.now.Previous, a.now.PreviousShards}, nil
	case a.shards != 0 && a.shards != a.now.Shards:
		a.phase = agreeAnnounce
		a.now = Generation{
			Number: a.now.Number + 1, Shards: a.shards,
			Previous: a.now.Number, PreviousShards: a.now.Shards, Cluster: a.cluster,
		}
		return WriteGeneration{a.now}, nil
	}
	a.phase = agreeDone
	return Agreed{a.now}, nil
}
