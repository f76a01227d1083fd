package event

import (
	"bytes"
	"cmp"
)

// Order is what the total order of writes compares, the same in every region.
type Order struct {
	Stamp Stamp
	At    Dot
	ID    ID
}

// Compare is negative if o comes before p: by stamp, then region, then event id,
// and for records that came without a gateway, whose ids are all zero, by place.
func (o Order) Compare(p Order) int {
	switch {
	case o.Stamp != p.Stamp:
		return cmp.Compare(o.Stamp, p.Stamp)
	case o.At.Region != p.At.Region:
		return cmp.Compare(o.At.Region, p.At.Region)
	case o.ID != p.ID:
		return bytes.Compare(o.ID[:], p.ID[:])
	}
	return o.At.Compare(p.At)
}

// Compare orders dots by region, incarnation, partition and offset: of one
// partition, as its logs have them.
func (d Dot) Compare(e Dot) int {
	switch {
	case d.Region != e.Region:
		return cmp.Compare(d.Region, e.Region)
	case d.Incarnation != e.Incarnation:
		return cmp.Compare(d.Incarnation, e.Incarnation)
	case d.Partition != e.Partition:
		return cmp.Compare(d.Partition, e.Partition)
	}
	return cmp.Compare(d.Offset, e.Offset)
}
