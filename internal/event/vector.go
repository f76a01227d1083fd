package event

import "encoding/binary"

// Point is how far one region's log of a partition has been applied: every
// record of Incarnation below Next, and of earlier incarnations whatever those
// were found to hold. The zero Point is "nothing".
type Point struct {
	Incarnation uint16
	Next        int64 // exclusive
}

// Compare orders points: negative if p lies before o.
func (p Point) Compare(o Point) int {
	switch {
	case p.Incarnation != o.Incarnation:
		return int(p.Incarnation) - int(o.Incarnation)
	case p.Next < o.Next:
		return -1
	case p.Next > o.Next:
		return 1
	}
	return 0
}

// Reaches tells whether an offset of an incarnation lies below the point.
func (p Point) Reaches(incarnation uint16, offset int64) bool {
	if p.Incarnation != incarnation {
		return p.Incarnation > incarnation
	}
	return offset < p.Next
}

// Vector says for one partition number how far each region's log has been
// applied; it is indexed by region id. Vectors are values: they compare with ==
// and copy by assignment.
type Vector [MaxRegion + 1]Point

// Covers tells whether the vector has reached d. The partition is the caller's
// to match.
func (v *Vector) Covers(d Dot) bool { return v[d.Region].Reaches(d.Incarnation, d.Offset) }

// Advance raises the entry of d's region to reach d; it never lowers it.
func (v *Vector) Advance(d Dot) {
	if p := (Point{d.Incarnation, d.Offset + 1}); v[d.Region].Compare(p) < 0 {
		v[d.Region] = p
	}
}

// Join raises every entry to at least o's.
func (v *Vector) Join(o *Vector) {
	for r := range v {
		if v[r].Compare(o[r]) < 0 {
			v[r] = o[r]
		}
	}
}

// CoversAll tells whether every entry is at least o's.
func (v *Vector) CoversAll(o *Vector) bool {
	for r := range v {
		if v[r].Compare(o[r]) < 0 {
			return false
		}
	}
	return true
}

// Without is the vector with region r's entry taken out.
func (v Vector) Without(r RegionID) Vector {
	v[r] = Point{}
	return v
}

// IsZero tells whether nothing was applied.
func (v *Vector) IsZero() bool { return *v == Vector{} }

// AppendVector appends the wire form of header gg-c: u8 count, then for each
// region with an entry, ids ascending: u8 id, uvarint incarnation, uvarint
// highest offset applied, inclusive. A region of which nothing was applied is
// left out, whatever its incarnation.
func AppendVector(b []byte, v *Vector) []byte { return appendVector(b, v, 0) }

// appendVector is AppendVector without the entry of a region.
func appendVector(b []byte, v *Vector, without RegionID) []byte {
	at := len(b)
	b = append(b, 0)
	for r := range v {
		if v[r].Next <= 0 || r == int(without) && without != 0 {
			continue
		}
		b[at]++
		b = append(b, byte(r))
		b = binary.AppendUvarint(b, uint64(v[r].Incarnation))
		b = binary.AppendUvarint(b, uint64(v[r].Next-1))
	}
	return b
}

// ReadVector takes the wire form of a vector from r.
func ReadVector(r *Reader) Vector {
	var v Vector
	last := RegionID(0)
	for range r.Uint8() {
		id := r.Region()
		inc := r.UvarintMax(1<<16 - 1)
		high := r.UvarintMax(1<<63 - 2)
		if r.Err() != nil {
			return Vector{}
		}
		if id <= last {
			r.Fail("region %d after %d in a vector", id, last)
			return Vector{}
		}
		last = id
		v[id] = Point{uint16(inc), int64(high) + 1}
	}
	return v
}
