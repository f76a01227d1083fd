package seats

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router/ownership"
)

// writePermit implements seat.WritePermit for one partition.
type writePermit struct {
	client    *ownership.Client
	tables    *ownership.Intervals
	unit      string
	topic     string
	partition int32

	last atomic.Pointer[tokensTable]

	mu       sync.Mutex
	revision uint64 // of the unit's record that reach was made from
	reach    *event.Vector
}

// tokensTable is what follows from tokens for one partition.
type tokensTable struct {
	tokens *ownership.Tokens
	table  *event.ValidityTable
}

// permit gives what a seat asks before it accepts a write; nil where there is no register.
func (s *Seats) permit(topic gateway.Topic, partition int32) seat.WritePermit {
	if s.client == nil {
		return nil
	}
	return &writePermit{
		client: s.client, tables: s.tables,
		unit: topic.Domain.Unit(s.cfg.Region), topic: topic.Name, partition: partition,
	}
}

// Grant implements seat.WritePermit.
func (p *writePermit) Grant() (seat.Grant, error) {
	g, err := p.client.Grant(p.unit)
	if err != nil {
		return seat.Grant{}, err
	}
	if t := p.client.Tokens(); t.Outdates(p.Intervals(), p.unit) {
		return seat.Grant{}, fmt.Errorf("%w: the ownership register's watch has not come to revision %d", seat.ErrNotReady, t.Units[p.unit].Revision)
	}
	return seat.Grant{Epoch: g.Epoch, Live: g.Live, Reach: p.reached()}, nil
}

// Holds implements seat.WritePermit.
func (p *writePermit) Holds(g seat.Grant) bool {
	return p.client.Holds(p.unit, ownership.Grant{Epoch: g.Epoch, Live: g.Live})
}

// Intervals implements seat.WritePermit. It is asked for every write, so what follows
// from the same tokens is not found out twice.
func (p *writePermit) Intervals() *event.ValidityTable {
	t := p.client.Tokens()
	if last := p.last.Load(); last != nil && last.tokens == t {
		return last.table
	}
	table := p.tables.From(t, p.topic, p.partition)
	p.last.Store(&tokensTable{t, table})
	return table
}

// Changed implements seat.WritePermit.
func (p *writePermit) Changed() <-chan struct{} { return p.client.Changed() }

// reached is how far logs must be indexed: the own one to where the epoch began,
// those of earlier owners to their cuts.
func (p *writePermit) reached() *event.Vector {
	u := p.client.Tokens().Units[p.unit]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.revision == u.Revision {
		return p.reach
	}
	v := p.tables.Reach(&u.Record, p.topic, p.partition)
	p.revision, p.reach = u.Revision, &v
	return p.reach
}
