//go:build unix

package main

import (
	"context"
	"fmt"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
)

// origin is one region's own log of a topic.
type origin struct {
	region *region
	all    []client.Logged
	at     map[event.Dot]*client.Logged
	// barriers counts the commit markers: one for each term of each seat.
	barriers int
}

// readOrigin reads a region's own log of a topic. Everything in it was written by
// its gateway, which stamps.
func readOrigin(ctx context.Context, r *region, topic string) (*origin, error) {
	all, barriers, err := client.Origin(ctx, r.seeds(), r.id, topic)
	if err != nil {
		return nil, fmt.Errorf("region %s: %w", r.name, err)
	}
	o := &origin{region: r, all: all, at: make(map[event.Dot]*client.Logged), barriers: barriers}
	for i, rec := range all {
		if !rec.Stamped || rec.Region != r.id {
			return nil, fmt.Errorf("record %d/%d of %s in %s: stamped %v, region %d", rec.At.Partition, rec.At.Offset, topic, r.name, rec.Stamped, rec.Region)
		}
		o.at[rec.At] = &all[i]
	}
	return o, nil
}
