package retention

import (
	"fmt"
	"math"
	"time"
)

const (
	// nearPart is the part of a retention after which what is not read is in danger, in
	// percent.
	nearPart = 80
	// nearLeft is the part of a log, in percent, that may lie between its start and what is
	// read next before that is in danger, if the log's start moves.
	nearLeft = 10
	// nearTime is how long it may take the start of a log to reach what is read next.
	nearTime = 10 * time.Minute
	// movesFor is how long a start that has moved is taken to move.
	movesFor = time.Hour
	// mostMarks bounds the memory of one partition.
	mostMarks = 32
)

// Need is what a reader still has to read of a partition: from Next up to Until.
type Need struct {
	Reader      string // "the fold", "link us-eu"
	Next, Until int64
}

// Look is what was seen of a partition at a time.
type Look struct {
	At         time.Time
	Start, End int64
	// Needs are those of the readers of which it is known where they are.
	Needs []Need
	// Old is the offset below which records are older than nearPart of retention.ms; 0 if
	// that is not known, or records are kept.
	Old int64
	// Recent is the first offset with a record of the idempotency window, End if there is
	// none; below 0 if that is not known.
	Recent int64
	// Bytes are those of the log, and MaxBytes is retention.bytes; MaxBytes is 0 if either is
	// not known, or everything is kept.
	Bytes, MaxBytes int64
}

// Partition remembers what was seen of a partition. The zero Partition has seen nothing.
type Partition struct {
	last   *Look
	ends   []mark // rising, spread over the window
	starts []mark // spread over movesFor
}

// mark is an offset, and when it was seen.
type mark struct {
	at     time.Time
	offset int64
}

// Danger is what may come of what was seen, one sentence each.
type Danger struct {
	Near  []string // what a reader still needs may soon be deleted
	Short string   // less than the idempotency window is kept
	// Margin is how many offsets lie between the start of the log and the first record that
	// a reader has left unread from one look to the next; -1 if there is none.
	Margin int64
}

// Look takes what was seen. What has been deleted already is told, too: its reader may be
// away, and will find the incident only when it is back.
func (p *Partition) Look(o Look, window time.Duration) Danger {
	p.follow(o, window)
	d := Danger{Short: p.short(o, window), Margin: -1}
	for _, n := range o.Needs {
		if !p.waits(o, n) {
			continue
		}
		if left := max(0, n.Next-o.Start); d.Margin < 0 || left < d.Margin {
			d.Margin = left
		}
		if why := p.near(o, n); why != "" {
			d.Near = append(d.Near, fmt.Sprintf("%s has read up to offset %d of %d: %s", n.Reader, n.Next, o.End, why))
		}
	}
	p.last = &o
	return d
}

// waits tells whether a reader has not read what was there at the look before. What has
// just been written tells nothing, and who has read nothing begins where the log begins.
func (p *Partition) waits(o Look, n Need) bool {
	return p.last != nil && (n.Next > 0 || o.Start == 0) && n.Next < min(n.Until, o.End, p.last.End)
}

// Waits is [Partition.Look] before it: whether any reader does.
func (p *Partition) Waits(o Look) bool {
	for _, n := range o.Needs {
		if p.waits(o, n) {
			return true
		}
	}
	return false
}

// near says why what a reader needs may soon be deleted.
func (p *Partition) near(o Look, n Need) string {
	size := o.End - o.Start
	switch left := n.Next - o.Start; {
	case left < 0:
		return fmt.Sprintf("the log begins at %d, so records that it has to read are deleted", o.Start)
	case n.Next < o.Old:
		return fmt.Sprintf("the next record is older than %d %% of %s", nearPart, retentionMS)
	case o.MaxBytes > 0 && scaled(o.Bytes, o.End-n.Next, size) >= float64(o.MaxBytes)*nearPart/100:
		return fmt.Sprintf("what it has to read takes more than %d %% of %s", nearPart, retentionBytes)
	case o.Start <= p.starts[0].offset: // nothing was deleted lately
	case left*100 <= size*nearLeft:
		return fmt.Sprintf("records are being deleted, and between the start of the log and that one are %d", left)
	default:
		took := o.At.Sub(p.starts[0].at)
		if in := max(time.Minute, took).Seconds() * float64(left) / float64(o.Start-p.starts[0].offset); in <= nearTime.Seconds() {
			return fmt.Sprintf("records are being deleted, and as in the last %s that one will be in %s", round(took), round(time.Duration(in*float64(time.Second))))
		}
	}
	return ""
}

// short says that records of the idempotency window were deleted, or soon will be.
func (p *Partition) short(o Look, window time.Duration) string {
	for i := len(p.ends) - 1; i >= 0; i-- {
		// What lies above the mark was written after it.
		if m := p.ends[i]; m.offset < o.Start && o.At.Sub(m.at) < window {
			return fmt.Sprintf("records less than %s old were deleted, and the idempotency window is %s: after the loss of a store their keys would not be known", round(o.At.Sub(m.at)), window)
		}
	}
	if size := o.End - o.Start; o.MaxBytes > 0 && o.Recent >= 0 && scaled(o.Bytes, o.End-max(o.Recent, o.Start), size) >= float64(o.MaxBytes)*nearPart/100 {
		return fmt.Sprintf("the records of the idempotency window (%s) take more than %d %% of %s (%d): after the loss of a store keys would not be known", window, nearPart, retentionBytes, o.MaxBytes)
	}
	return ""
}

// scaled is the part of bytes that n of size offsets take.
func scaled(bytes, n, size int64) float64 {
	if n <= 0 || size <= 0 {
		return 0
	}
	return float64(bytes) * math.Min(1, float64(n)/float64(size))
}

// follow notes how the log's start and end move.
func (p *Partition) follow(o Look, window time.Duration) {
	if p.last != nil && (o.End < p.last.End || o.Start < p.last.Start) {
		*p = Partition{} // another log
	}
	for len(p.starts) > 1 && o.At.Sub(p.starts[1].at) >= movesFor {
		p.starts = p.starts[1:]
	}
	if n := len(p.starts); n == 0 || o.At.Sub(p.starts[n-1].at) >= movesFor/mostMarks {
		p.starts = append(p.starts, mark{o.At, o.Start})
	}
	for len(p.ends) > 0 && o.At.Sub(p.ends[0].at) >= window {
		p.ends = p.ends[1:]
	}
	if n := len(p.ends); n == 0 || o.At.Sub(p.ends[n-1].at) >= window/mostMarks {
		p.ends = append(p.ends, mark{o.At, o.End})
	}
}

// round rounds up.
func round(d time.Duration) time.Duration {
	unit := time.Second
	if d > time.Minute {
		unit = time.Minute
	}
	return max(unit, (d + unit - 1).Truncate(unit))
}
