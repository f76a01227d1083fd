package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/data"
)

// Bounds of filling the demo. A gateway that is just starting, or busy, is asked
// again; one that stays so is an error.
const (
	seedTimeout  = 2 * time.Minute
	seedPause    = 50 * time.Millisecond
	seedBatch    = 200 // records a request
	seedTopics   = 2   // flights, github
	maxSeedReply = 1 << 20
)

// seeder writes the demo's data through the regions' HTTP APIs, as any producer
// would: with idempotency keys, so that trying again never writes twice.
type seeder struct {
	regions []demoRegion
	started time.Time
	log     *slog.Logger

	mu    sync.Mutex
	first time.Duration // from the start to the first answered write
}

// seedLine is one line of an NDJSON write.
type seedLine struct {
	Key            typed  `json:"key"`
	Value          typed  `json:"value"`
	IdempotencyKey string `json:"idempotency_key"`
}

type typed struct {
	Type string `json:"type"`
	Data any    `json:"data"`
}

// seed writes all lines, odd ones in the first region, even ones in the second,
// and gives their number.
func (s *seeder) seed(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, seedTimeout)
	defer cancel()
	count := 0
	group, ctx := errgroup.WithContext(ctx)
	for topic, lines := range map[string][]data.Line{"flights": data.Flights(), "github": data.GitHub()} {
		perRegion := make([][]seedLine, len(s.regions))
		for _, l := range lines {
			count++
			i := (l.Number - 1) % len(s.regions)
			perRegion[i] = append(perRegion[i], seedLine{
				Key: typed{"string", l.Key}, Value: typed{"json", json.RawMessage(l.Value)},
				IdempotencyKey: fmt.Sprintf("%s:%d", topic, l.Number),
			})
		}
		for i, r := range s.regions {
			group.Go(func() error { return s.writeAll(ctx, r, topic, perRegion[i]) })
		}
	}
	return count, group.Wait()
}

// writeAll writes lines in order, batch by batch, and repeats what was not
// stored until it is.
func (s *seeder) writeAll(ctx context.Context, r demoRegion, topic string, lines []seedLine) error {
	for len(lines) > 0 {
		stored, err := s.write(ctx, r, topic, lines[:min(seedBatch, len(lines))])
		lines = lines[stored:]
		if err == nil {
			continue
		}
		s.log.Info("demo waits", "region", r.Name, "topic", topic, "reason", err.Error())
		if sleep.For(ctx, seedPause) != nil {
			return fmt.Errorf("fill %s in region %s: %w", topic, r.Name, err)
		}
	}
	return nil
}

func (s *seeder) noteFirst() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == 0 {
		s.first = time.Since(s.started)
	}
}

// write sends one batch and gives how many of its lines, from the first on, are
// known to be stored.
func (s *seeder) write(ctx context.Context, r demoRegion, topic string, lines []seedLine) (stored int, err error) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	for _, l := range lines {
		if err := encoder.Encode(l); err != nil {
			return 0, fmt.Errorf("encode line %s: %w", l.IdempotencyKey, err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.dataURL()+"/v1/topics/"+topic+"/records", &body)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		reply, err := io.ReadAll(io.LimitReader(resp.Body, maxSeedReply))
		if err != nil {
			return 0, err
		}
		return 0, problemError(resp, reply)
	}
	scanner := bufio.NewScanner(resp.Body)
	scanner.Buffer(nil, maxSeedReply)
	for scanner.Scan() {
		var answer struct {
			Dot     string
			Problem json.RawMessage
		}
		if err := json.Unmarshal(scanner.Bytes(), &answer); err != nil {
			return stored, fmt.Errorf("read answer to line %s: %w", lines[stored].IdempotencyKey, err)
		}
		if answer.Dot == "" {
			return stored, fmt.Errorf("line %s was not stored: %s", lines[stored].IdempotencyKey, answer.Problem)
		}
		s.noteFirst()
		if stored++; stored == len(lines) {
			return stored, nil
		}
	}
	if err := scanner.Err(); err != nil {
		return stored, fmt.Errorf("read answers: %w", err)
	}
	return stored, fmt.Errorf("%d of %d lines were answered", stored, len(lines))
}

// settle waits until every region takes writes, unless it is fenced, and every
// link runs and has nothing left to copy. It gives the regions that are fenced.
func (s *seeder) settle(ctx context.Context) (fenced []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, seedTimeout)
	defer cancel()
	for {
		var waiting string
		fenced, waiting, err = s.survey(ctx)
		if err == nil && waiting == "" {
			return fenced, nil
		}
		if sleep.For(ctx, 2*seedPause) == nil {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("wait for regions: %w", err)
		}
		return nil, fmt.Errorf("wait for regions: %s", waiting)
	}
}

// survey asks every region. It names the fenced ones, and what they still wait for,
// "" if nothing.
func (s *seeder) survey(ctx context.Context) (fenced []string, waiting string, err error) {
	for _, r := range s.regions {
		status, err := s.status(ctx, r)
		if err != nil {
			return nil, "", err
		}
		isFenced, waiting := writable(r.Name, status)
		if waiting == "" {
			waiting = lagging(r.Name, status)
		}
		if waiting != "" {
			return nil, waiting, nil
		}
		if isFenced {
			fenced = append(fenced, r.Name)
		}
	}
	return fenced, "", nil
}

func (s *seeder) status(ctx context.Context, r demoRegion) (status gateway.Status, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.managementURL()+"/v1/status", nil)
	if err != nil {
		return status, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return status, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxSeedReply)).Decode(&status); err != nil {
		return status, fmt.Errorf("read status of region %s: %w", r.Name, err)
	}
	return status, nil
}

// writable reports whether a region is fenced, as a whole or in a unit, and what
// it waits for before it takes writes.
func writable(region string, st gateway.Status) (fenced bool, waiting string) {
	for _, r := range st.Regions {
		if r.Name == region && r.State != string(ownership.RegionUp) {
			return true, ""
		}
	}
	held := 0
	for _, u := range st.Units {
		switch {
		case !strings.HasSuffix(u.Unit, "/"+region):
		case u.State == string(ownership.UnitFenced) && st.Register != nil && st.Register.State == "ok":
			fenced = true
		case u.LeaseSeconds == nil:
			return false, fmt.Sprintf("region %s has no lease of %s", region, u.Unit)
		default:
			held++
		}
	}
	if held == 0 && !fenced {
		return false, fmt.Sprintf("region %s has not reached the ownership register", region)
	}
	return fenced, ""
}

// lagging names a link of a region that has not copied everything, "" if none.
func lagging(region string, st gateway.Status) string {
	outgoing := 0
	for _, l := range st.Links {
		if l.From != region {
			continue
		}
		outgoing++
		// A link that has not found a topic yet has no lag on it.
		if l.Topics < seedTopics {
			return fmt.Sprintf("link %s has found %d of %d topics", l.Name, l.Topics, seedTopics)
		}
		if l.State != "running" || l.LagRecords == nil || *l.LagRecords != 0 {
			return fmt.Sprintf("link %s is %s, lag %s", l.Name, l.State, orUnknown("%d records", l.LagRecords))
		}
	}
	if outgoing == 0 {
		return fmt.Sprintf("region %s shows no link yet", region)
	}
	return ""
}
