package gateway

import (
	"hash/maphash"
	"iter"

	"github.com/geogate/geogate/router/ownership"
)

// mayStillBeStored tells whether a line that was refused may be stored when it is
// sent again, or may be stored already: no later line of its key may then come
// before it. A line that is wrong in itself stays wrong. NOT_OWNER passes when an
// operator changes the owner, but where the record says who that is, it is about
// this line alone.
func mayStillBeStored(p *problem, t *Topic) bool {
	if p.code == codeNotOwner {
		return t == nil || t.Domain.Mode != ownership.ByKey
	}
	return p.retriable || p.code.kind().status >= 500
}

// form is what the answers call the parts of a request with many records, and the whole.
type form struct{ part, whole string }

// afterFailure is the answer to a line that comes after one that has failed.
func (f form) afterFailure() *problem {
	return newProblem(codeNotReady, "an earlier %s of this %s was not stored, so this one was not either, to preserve their order; send the %s again from its start", f.part, f.whole, f.whole)
}

// ended is the answer to a line that was not stored before the client had gone, or the
// instance ended.
func (f form) ended() *problem {
	return newProblem(codeNotReady, "the request ended before this %s was stored", f.part)
}

// places are the partitions in which records of each key are in flight. They are known
// from the first on that does not go where its key alone would put it.
type places struct {
	seed       maphash.Seed
	at         map[uint64]int32 // by the key's hash; nil: all are where their keys put them
	partitions int32            // of the topic, by which the keys' places were found
}

// clear is called when nothing is in flight.
func (p *places) clear() {
	if p.at != nil {
		clear(p.at)
	}
}

// assign notes the partition of a record and tells whether one of its key is in flight in
// another. inFlight are the records in flight.
func (p *places) assign(e *entry, inFlight iter.Seq[*entry]) (elsewhere bool) {
	if n := e.write.topic.Partitions; p.partitions != n {
		elsewhere, p.partitions = p.partitions != 0, n
	}
	if p.at == nil && e.write.overridesKey || len(p.at) > 2*sequenceWindow {
		p.seed, p.at = maphash.MakeSeed(), make(map[uint64]int32)
		for f := range inFlight {
			if f.key != nil {
				p.at[maphash.Bytes(p.seed, f.key)] = f.write.partition
			}
		}
	}
	if p.at == nil {
		return elsewhere
	}
	h := maphash.Bytes(p.seed, e.key)
	at, known := p.at[h]
	p.at[h] = e.write.partition
	return elsewhere || known && at != e.write.partition
}
