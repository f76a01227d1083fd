package router

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/names"
)

// Region is a region's name, used in topic names and by people, and its id, used
// in records. Neither is ever given to another region: old records keep the id,
// old topics the name.
type Region struct {
	Name string
	ID   event.RegionID
}

// Topology is the set of regions of a deployment, the same in all of them. It
// is immutable and implements [event.RegionNames].
type Topology struct {
	regions []Region // ordered by id
}

var _ event.RegionNames = (*Topology)(nil)

// NewTopology checks that every region has a valid name and id and that no two
// share either. At least one region is needed.
func NewTopology(regions ...Region) (*Topology, error) {
	if len(regions) == 0 {
		return nil, fmt.Errorf("%w: there is none", ErrTopology)
	}
	ordered := slices.Clone(regions)
	slices.SortFunc(ordered, func(a, b Region) int { return cmp.Compare(a.ID, b.ID) })
	names := make(map[string]event.RegionID, len(ordered))
	for i, r := range ordered {
		if err := CheckAlias(r.Name); err != nil {
			return nil, err
		}
		if !r.ID.Valid() {
			return nil, fmt.Errorf("%w: id %d of %s is not within 1 to %d", ErrTopology, r.ID, r.Name, event.MaxRegion)
		}
		if i > 0 && ordered[i-1].ID == r.ID {
			return nil, fmt.Errorf("%w: %s and %s have the same id %d", ErrTopology, ordered[i-1].Name, r.Name, r.ID)
		}
		if other, twice := names[r.Name]; twice {
			return nil, fmt.Errorf("%w: ids %d and %d have the same name %s", ErrTopology, other, r.ID, r.Name)
		}
		names[r.Name] = r.ID
	}
	return &Topology{regions: ordered}, nil
}

// CheckAlias returns [ErrAlias] unless name has the form [a-z][a-z0-9-]{0,30}.
// The form excludes the separator of remote names, so that splitting one at its
// first separator is exact.
func CheckAlias(name string) error {
	if !names.IsRegion(name) {
		return fmt.Errorf("%w: %q, want 1 to 31 of a-z, 0-9 and -, first a letter", ErrAlias, name)
	}
	return nil
}

// Name gives the name of a region, "" for an unknown id.
func (t *Topology) Name(id event.RegionID) string {
	for _, r := range t.regions {
		if r.ID == id {
			return r.Name
		}
	}
	return ""
}

// ID gives the id of a region; ok is false for an unknown name.
func (t *Topology) ID(name string) (id event.RegionID, ok bool) {
	for _, r := range t.regions {
		if r.Name == name {
			return r.ID, true
		}
	}
	return 0, false
}

// Regions gives all regions ordered by id.
func (t *Topology) Regions() []Region { return slices.Clone(t.regions) }

// Others gives all regions but the one named, ordered by id.
func (t *Topology) Others(name string) []Region {
	return slices.DeleteFunc(t.Regions(), func(r Region) bool { return r.Name == name })
}
