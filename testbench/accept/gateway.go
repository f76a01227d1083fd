//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/geogate/geogate/testbench/client"
)

const (
	// retryWait is how long a client asks again with the same key: long enough for a
	// killed gateway to come back.
	retryWait  = 60 * time.Second
	retryPause = 100 * time.Millisecond
)

// listens says where the region's gateway listens: host and port.
func (r *region) listens(c *http.Client, data, management string) {
	r.manage = "http://" + management
	r.gateway = client.Client{HTTP: c, Address: client.At("http://"+data, r.manage), Retry: retryPause}
}

// store sends a write to a region until it is answered, as a careful client does.
func (r *region) store(ctx context.Context, wr client.Write) (client.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, retryWait)
	defer cancel()
	a, err := r.gateway.Store(ctx, wr)
	if err != nil {
		return a, fmt.Errorf("region %s: %w", r.name, err)
	}
	return a, nil
}

// storeAll does the same with a stream of writes.
func (r *region) storeAll(ctx context.Context, writes []client.Write) ([]client.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, retryWait)
	defer cancel()
	answers, err := r.gateway.StoreAll(ctx, writes)
	if err != nil {
		return nil, fmt.Errorf("region %s: %w", r.name, err)
	}
	return answers, nil
}

// linkStatus is what the status says of a link; a nil number is unknown.
type linkStatus struct {
	Name       string            `json:"name"`
	From       string            `json:"from"`
	To         string            `json:"to"`
	State      string            `json:"state"`
	LagRecords *int64            `json:"lag_records"`
	LagSeconds *float64          `json:"lag_seconds"`
	Copied     int64             `json:"copied"`
	Parked     []json.RawMessage `json:"parked"`
}

// link returns the status of the region's outgoing link.
func (r *region) link(ctx context.Context) (linkStatus, error) {
	var s struct {
		Links []linkStatus `json:"links"`
	}
	if err := r.gateway.Manage(ctx, "/v1/status", &s); err != nil {
		return linkStatus{}, fmt.Errorf("read status of %s: %w", r.name, err)
	}
	for _, l := range s.Links {
		if l.From == r.name {
			return l, nil
		}
	}
	return linkStatus{}, fmt.Errorf("status of %s names no link from it: %+v", r.name, s)
}
