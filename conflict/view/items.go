package view

import (
	"slices"

	"github.com/geogate/geogate/internal/judged"
)

// itemCost is about what an item keeps in memory beside its record.
const itemCost = 576

// itemParts are items in order, in the parts in which they came: an item is large, so it
// stays where it is. The zero value is empty.
type itemParts struct {
	list  [][]judged.Item // none is empty
	items int
	bytes int // about what they keep in memory
}

func (p *itemParts) add(part []judged.Item) {
	if len(part) == 0 {
		return
	}
	p.list, p.items = append(p.list, part), p.items+len(part)
	for i := range part {
		p.bytes += cost(&part[i])
	}
}

func (p *itemParts) append(other itemParts) {
	p.list = append(p.list, other.list...)
	p.items, p.bytes = p.items+other.items, p.bytes+other.bytes
}

// move moves up to n items of the first part to the end of other, until that has a number of
// bytes, and tells whether all n were moved.
func (p *itemParts) move(other *itemParts, n, limit int) bool {
	part, moved, bytes := p.list[0], 0, 0
	for moved < n && other.bytes+bytes < limit {
		bytes += cost(&part[moved])
		moved++
	}
	if moved == 0 {
		return false
	}
	other.list = append(other.list, part[:moved:moved])
	other.items, other.bytes = other.items+moved, other.bytes+bytes
	p.items, p.bytes = p.items-moved, p.bytes-bytes
	if p.list[0] = part[moved:]; moved == len(part) {
		p.list[0], p.list = nil, p.list[1:]
	}
	if p.items == 0 {
		*p = itemParts{}
	}
	return moved == n
}

// split takes out what is beyond n items.
func (p *itemParts) split(n int) (rest itemParts) {
	if p.items <= n {
		return rest
	}
	var first itemParts
	for _, part := range p.list {
		take := min(len(part), n-first.items)
		first.add(part[:take:take])
		rest.add(part[take:])
	}
	*p = first
	return rest
}

// join puts other before what is there.
func (p *itemParts) join(other itemParts) {
	p.list = append(slices.Clip(other.list), p.list...)
	p.items, p.bytes = p.items+other.items, p.bytes+other.bytes
}

func cost(it *judged.Item) int {
	n := itemCost + len(it.Event.Key) + len(it.Event.Value)
	for i := range it.Event.Headers {
		n += 48 + len(it.Event.Headers[i].Key) + len(it.Event.Headers[i].Value)
	}
	return n
}

// withoutUnread is the items without what the fold does not look at, because they may wait
// long. It copies them if there is such a thing: the caller's own must not change.
func withoutUnread(items []judged.Item) []judged.Item {
	own := false
	for i := range items {
		if !hasUnread(&items[i]) {
			continue
		}
		if !own {
			items, own = slices.Clone(items), true
		}
		items[i].Event.Value, items[i].Event.Headers = nil, nil
	}
	return items
}

func hasUnread(it *judged.Item) bool {
	return it.Verdict != judged.Valid && (it.Event.Value != nil || it.Event.Headers != nil)
}
