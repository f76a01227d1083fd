//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/testbench/data"

	"github.com/geogate/geogate/testbench/client"
)

const (
	flightsTopic = "flights" // entity, key = origin airport
	githubTopic  = "github"  // events

	cutFor     = 10 * time.Second
	quietWait  = 120 * time.Second
	chunkLines = 25 // lines of one NDJSON request
	streams    = 6  // NDJSON requests at a time
	singles    = 12 // single requests at a time
)

// secretMark stands in one key and one value; it must be in no log file.
const secretMark = "accept-mark-9f31c7"

// lossless is the first part: it drives the world and remembers what it was told.
type lossless struct {
	notebook
	w      *world
	ledger ledger

	flights, github []item

	answered atomic.Int64 // first answers to the stage that is being pushed

	covered map[string]map[place]int64

	followed []client.Record // both parts of the follower's stream
	stale    int
}

func newLossless(w *world, rep *report, flights, github []data.Line) *lossless {
	s := &lossless{notebook: notebook{rep: rep}, w: w, covered: make(map[string]map[place]int64)}
	s.ledger.entries = make(map[string]*entry)
	items := func(topic, file string, lines []data.Line) (out []item) {
		for _, l := range lines {
			out = append(out, item{client.Write{Topic: topic, Key: l.Key, Idem: fmt.Sprintf("%s:%d", file, l.Number), Value: l.Value}, l.Number})
		}
		return out
	}
	s.flights = items(flightsTopic, data.FlightsFile, flights)
	s.github = items(githubTopic, data.GitHubFile, github)
	return s
}

// home is where a line goes first: odd lines to us, even ones to eu.
func (s *lossless) home(it item) *region {
	if it.number%2 == 1 {
		return s.w.us
	}
	return s.w.eu
}

// stage is the part of both files between two tenths.
func (s *lossless) stage(from, to int) (out []item) {
	for _, all := range [][]item{s.github, s.flights} {
		out = append(out, all[len(all)*from/10:len(all)*to/10]...)
	}
	return out
}

// push sends items to where they belong: webhooks one by one, flights as
// streams, each with bounded concurrency.
func (s *lossless) push(ctx context.Context, items []item) error {
	g, ctx := errgroup.WithContext(ctx)
	one, many := new(errgroup.Group), new(errgroup.Group)
	one.SetLimit(singles)
	many.SetLimit(streams)
	chunks := make(map[*region][]item)
	flush := func(r *region) {
		chunk := chunks[r]
		chunks[r] = nil
		many.Go(func() error { return s.pushChunk(ctx, r, chunk) })
	}
	g.Go(func() error {
		for _, it := range items {
			if it.Topic == githubTopic && ctx.Err() == nil {
				one.Go(func() error { return s.pushOne(ctx, it) })
			}
		}
		return one.Wait()
	})
	g.Go(func() error {
		for _, it := range items {
			if it.Topic != flightsTopic || ctx.Err() != nil {
				continue
			}
			r := s.home(it)
			if chunks[r] = append(chunks[r], it); len(chunks[r]) == chunkLines {
				flush(r)
			}
		}
		for r, rest := range chunks {
			if len(rest) > 0 {
				flush(r)
			}
		}
		return many.Wait()
	})
	return g.Wait()
}

func (s *lossless) pushOne(ctx context.Context, it item) error {
	r := s.home(it)
	a, err := r.store(ctx, it.Write)
	if err != nil {
		return err
	}
	if !a.Replayed && !a.Pending {
		s.note("first answer to %s in %s lacks Geogate-Dedupe: pending", it.Idem, r.name)
	}
	s.ledger.record(it, r.name, a)
	s.answered.Add(1)
	return nil
}

func (s *lossless) pushChunk(ctx context.Context, r *region, chunk []item) error {
	writes := make([]client.Write, len(chunk))
	for i, it := range chunk {
		writes[i] = it.Write
	}
	answers, err := r.storeAll(ctx, writes)
	if err != nil {
		return err
	}
	for i, it := range chunk {
		s.ledger.record(it, r.name, answers[i])
	}
	s.answered.Add(int64(len(chunk)))
	return nil
}

// run does the first part. An error means that it could not go on; what it finds
// wrong on the way is reported as a failed check.
func (s *lossless) run(ctx context.Context) error {
	f := s.w.us.gateway.Keep(ctx, githubTopic, "earliest")
	defer f.End()
	s.rep.say("push: first half of both files, odd lines to us, even lines to eu")
	first := s.stage(0, 5)
	if err := s.push(ctx, first); err != nil {
		return err
	}
	s.report("first answers to keyed writes say that dedupe is pending", "%d writes", len(first))

	f, err := s.apart(ctx, f)
	if f != nil {
		defer f.End()
	}
	if err != nil {
		return err
	}
	if err := s.quiet(ctx); err != nil {
		return err
	}
	if err := s.replays(ctx); err != nil {
		return err
	}
	if err := s.kill(ctx); err != nil {
		return err
	}
	if err := s.quiet(ctx); err != nil {
		return err
	}
	if err := s.loseStore(ctx); err != nil {
		return err
	}
	return s.endFollower(ctx, f)
}

// apart cuts both lines, lets both regions go on by themselves, moves the
// follower, and heals.
func (s *lossless) apart(ctx context.Context, f *client.Follower) (*client.Follower, error) {
	s.rep.say("cut both lines")
	s.w.cut()
	started := time.Now()
	second := s.stage(5, 6)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.push(gctx, second) })
	g.Go(func() error { return s.writeConflicts(gctx) })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := s.retryApart(ctx, second); err != nil {
		return nil, err
	}
	s.lagIsHonest(ctx)
	f, err := s.moveFollower(ctx, f)
	if err != nil {
		return f, err
	}
	if sleep.For(ctx, cutFor-time.Since(started)) != nil {
		return f, ctx.Err()
	}
	if n, _ := f.Count(); n > 0 {
		s.note("the follower got %d records in eu while eu could not know its cursor", n)
	}
	s.report("a follower's cursor is not served by a region that has not seen what it covers", "cut for %s", time.Since(started).Round(time.Second))
	s.rep.say("heal both lines")
	return f, s.w.heal()
}

// writeConflicts writes to the same entities in both regions at once. Every fifth
// entity is deleted by eu.
func (s *lossless) writeConflicts(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range s.w.regions() {
		g.Go(func() error {
			for n := range 60 {
				key := fmt.Sprintf("accept/conflict/%d", n%30)
				if n%30 < 20 {
					key = s.flights[n%30].Key // an entity that is known everywhere
				}
				it := item{Write: client.Write{
					Topic: flightsTopic, Key: key, Idem: fmt.Sprintf("conflict:%s:%d", r.name, n),
					Value: fmt.Appendf(nil, `{"accept":%q,"n":%d,"mark":%q}`, r.name, n, secretMark),
				}}
				if r == s.w.eu && n%5 == 4 {
					it.Value = nil
				}
				a, err := r.store(ctx, it.Write)
				if err != nil {
					return err
				}
				s.ledger.record(it, r.name, a)
			}
			return nil
		})
	}
	return g.Wait()
}

// retried tells whether a line takes part in the retries while cut (which is
// every third line of the second stage and every tenth before it), or in the
// later ones.
func retriedApart(it item, second bool) bool { return second && it.number%3 == 0 || it.number%10 == 3 }
func retriedLater(it item) bool              { return it.number%10 == 7 }

// retryApart sends some keys again in the other region while it may not know
// them.
func (s *lossless) retryApart(ctx context.Context, second []item) error {
	isSecond := make(map[string]bool)
	for _, it := range second {
		isSecond[it.Idem] = true
	}
	var retry []item
	for _, it := range s.stage(0, 6) {
		if retriedApart(it, isSecond[it.Idem]) {
			retry = append(retry, it)
		}
	}
	var twins atomic.Int64
	err := s.each(ctx, retry, func(ctx context.Context, it item) error {
		r := s.w.other(s.home(it))
		a, err := r.store(ctx, it.Write)
		if err != nil {
			return err
		}
		original := s.ledger.get(it.Idem).asked[s.home(it).name]
		switch {
		case !a.Replayed && a.Region != r.name:
			s.note("retry of %s in %s was accepted as %s's", it.Idem, r.name, a.Region)
		case !a.Replayed:
			twins.Add(1)
		default:
			s.sameAnswer(it.Idem, r, a, original)
		}
		s.ledger.record(it, r.name, a)
		return nil
	})
	if err != nil {
		return err
	}
	if twins.Load() == 0 {
		s.note("no retry became a twin: the cut did not separate the regions")
	}
	s.report("while cut, a retry in the other region is accepted there or replays the original", "%d retries, %d twins", len(retry), twins.Load())
	return nil
}

// each runs do over items with bounded concurrency.
func (s *lossless) each(ctx context.Context, items []item, do func(context.Context, item) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(singles)
	for _, it := range items {
		g.Go(func() error { return do(ctx, it) })
	}
	return g.Wait()
}

// sameAnswer notes a replay that differs from the answer it repeats: byte for
// byte where both are bodies, else by what they say (a line of a stream and a
// body differ in their framing only).
func (s *lossless) sameAnswer(idem string, r *region, got, want client.Answer) {
	same := got.Dot == want.Dot && got.ID == want.ID && got.Stamp == want.Stamp && got.Token == want.Token
	if want.Header != nil && got.Header != nil {
		same = got.Raw == want.Raw
	}
	if !same {
		s.note("replay of %s in %s differs:\n%s\n%s", idem, r.name, got.Raw, want.Raw)
	}
}

// lagIsHonest checks that a link that cannot deliver does not claim to be done.
func (s *lossless) lagIsHonest(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, r := range s.w.regions() {
		var l linkStatus
		var err error
		ok := poll(ctx, 100*time.Millisecond, func() bool {
			l, err = r.link(ctx)
			return err == nil && (l.LagRecords == nil || *l.LagRecords > 0)
		})
		if !ok {
			s.note("link from %s claims lag 0 while cut: %+v %v", r.name, l, err)
		}
	}
	s.report("a cut link's lag is unknown or above 0", "2 links")
}

// moveFollower stops the follower in us once it has read what only us knows, and
// goes on in eu from its cursor.
func (s *lossless) moveFollower(ctx context.Context, f *client.Follower) (*client.Follower, error) {
	want := 0
	for _, e := range s.ledger.of(githubTopic) {
		if a, ok := e.asked["us"]; ok && a.Region == "us" {
			want++
		}
	}
	short, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if !poll(short, 20*time.Millisecond, func() bool { n, _ := f.Count(); return n >= want }) {
		n, _ := f.Count()
		s.note("the follower in us got %d records within 30 s, us alone accepted %d", n, want)
	}
	got, cursor, err := f.End()
	if err != nil {
		return nil, err
	}
	s.followed = got
	s.rep.say("follower of github: %d records in us, goes on in eu", len(got))
	return s.w.eu.gateway.Keep(ctx, githubTopic, cursor), nil
}

// endFollower waits until the follower has had every key and a moment more.
func (s *lossless) endFollower(ctx context.Context, f *client.Follower) error {
	keys := len(s.ledger.of(githubTopic))
	short, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	poll(short, 20*time.Millisecond, func() bool { n, _ := f.Count(); return len(s.followed)+n >= keys })
	if sleep.For(ctx, time.Second) != nil {
		return ctx.Err()
	}
	got, _, err := f.End()
	_, s.stale = f.Count()
	s.followed = append(s.followed, got...)
	return err
}

// quiet waits until both links have nothing left to do and both regions have
// applied everything acknowledged, which it proves by reading with the tokens of
// the last acknowledged write of every partition of every origin.
func (s *lossless) quiet(ctx context.Context) error {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, quietWait)
	defer cancel()
	if err := s.w.linksIdle(ctx); err != nil {
		return err
	}
	highs, err := s.ledger.highs(s.w)
	if err != nil {
		return err
	}
	for _, r := range s.w.regions() {
		if s.covered[r.name] == nil {
			s.covered[r.name] = make(map[place]int64)
		}
		for p, h := range highs {
			if err := s.applied(ctx, r, p, h); err != nil {
				return err
			}
			s.covered[r.name][p] = h.offset
		}
	}
	s.rep.say("quiet after %s: lag 0, %d places applied in both regions", time.Since(started).Round(100*time.Millisecond), len(highs))
	return nil
}

// applied reads with a token until the region has applied what it stands for.
func (s *lossless) applied(ctx context.Context, r *region, p place, h high) error {
	path := "/v1/topics/" + p.topic
	if p.topic == flightsTopic {
		path += "/entities/" + url.PathEscape(h.key)
	} else {
		path += "/records?view=merged&from=earliest&limit=1"
	}
	var last error
	ok := poll(ctx, retryPause, func() bool {
		_, _, err := r.gateway.Do(ctx, http.MethodGet, path, nil, http.Header{"Geogate-Token": {h.token}})
		var pr *client.Problem
		if errors.As(err, &pr) && pr.Code == "ENTITY_UNKNOWN" {
			err = nil // deleted, and the token was waited for all the same
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		return err == nil || errors.As(err, &pr) && !pr.Retriable
	})
	if !ok || last != nil && !client.MayRetry(last) {
		return fmt.Errorf("%s does not apply %s partition %d of region %d to offset %d: %w", r.name, p.topic, p.partition, p.region, h.offset, errors.Join(last, ctx.Err()))
	}
	return nil
}

// replays retries another tenth, and what was retried while cut, in the other
// region: by now every region knows every key.
func (s *lossless) replays(ctx context.Context) error {
	var retry []item
	for _, it := range s.stage(0, 6) {
		e := s.ledger.get(it.Idem)
		if retriedLater(it) || len(e.asked) > 1 {
			retry = append(retry, it)
		}
	}
	err := s.each(ctx, retry, func(ctx context.Context, it item) error {
		r := s.w.other(s.home(it))
		a, err := r.store(ctx, it.Write)
		if err != nil {
			return err
		}
		e := s.ledger.get(it.Idem)
		want, ok := e.asked[r.name] // a region with a copy of its own replays that
		if !ok {
			want = e.asked[e.first]
		}
		if !a.Replayed {
			s.note("retry of %s in %s after lag 0 is not a replay: %s", it.Idem, r.name, a.Raw)
		} else {
			s.sameAnswer(it.Idem, r, a, want)
		}
		s.ledger.record(it, r.name, a)
		return nil
	})
	if err != nil {
		return err
	}
	s.report("at lag 0 a retry in the other region replays the same answer", "%d retries", len(retry))

	for _, it := range []item{s.flights[0], s.flights[1], s.github[0], s.github[1]} {
		for _, r := range s.w.regions() {
			other := it.Write
			other.Value = []byte(`{"another":"body"}`)
			_, err := r.gateway.Try(ctx, other)
			var p *client.Problem
			if !errors.As(err, &p) || p.Status != 422 || p.Code != "IDEMPOTENCY_KEY_REUSED" || p.Retriable {
				s.note("key %s with another body in %s: %v", it.Idem, r.name, err)
			}
		}
	}
	s.report("a key with another body is refused in both regions", "8 requests")
	return nil
}

// kill pushes the rest and kills us with SIGKILL on the way.
func (s *lossless) kill(ctx context.Context) error {
	rest := s.stage(6, 10)
	s.rep.say("push: the rest; kill us with SIGKILL on the way")
	s.answered.Store(0)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.push(gctx, rest) })
	g.Go(func() error {
		short, cancel := context.WithTimeout(gctx, retryWait)
		defer cancel()
		poll(short, time.Millisecond, func() bool { return s.answered.Load() >= int64(len(rest)/4) })
		s.w.us.proc.Kill()
		at := s.answered.Load()
		if at >= int64(len(rest)) {
			s.note("us was killed after the load had ended")
		}
		s.rep.say("us killed with %d of %d answered", at, len(rest))
		if sleep.For(gctx, 500*time.Millisecond) != nil {
			return gctx.Err()
		}
		started := time.Now()
		if err := s.w.up(gctx, s.w.us); err != nil {
			return err
		}
		s.rep.say("us is ready again after %s", time.Since(started).Round(10*time.Millisecond))
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	s.report("a gateway killed under load comes back and answers every retry", "%d writes", len(rest))
	return nil
}

// loseStore deletes eu's store and proves that nothing is lost and nothing
// emitted twice.
func (s *lossless) loseStore(ctx context.Context) error {
	eu := s.w.eu
	before, err := s.snapshot(ctx, eu)
	if err != nil {
		return err
	}
	code, err := eu.down()
	if err != nil {
		return err
	}
	if code != 0 {
		s.note("eu exits %d after SIGTERM", code)
	}
	s.report("a gateway drains and exits 0 on SIGTERM", "eu")
	store := filepath.Join(eu.dir, "store")
	if _, err := os.Stat(store); err != nil {
		return fmt.Errorf("find eu's store: %w", err)
	}
	if err := os.RemoveAll(store); err != nil {
		return err
	}
	// An embedded broker lives in the process: what the snapshot read from it
	// can be read again only after the start.
	started := time.Now()
	if err := s.w.up(ctx, eu); err != nil {
		return err
	}
	s.rep.say("eu is ready without its store after %s", time.Since(started).Round(10*time.Millisecond))
	fresh, err := s.freshWrites(ctx)
	if err != nil {
		return err
	}
	if err := s.quiet(ctx); err != nil {
		return err
	}
	return s.compareSnapshot(ctx, eu, before, fresh)
}

// freshWrites writes new entities and events in both regions, so that every
// partition moves on.
func (s *lossless) freshWrites(ctx context.Context) ([]item, error) {
	var fresh []item
	for n := range 24 {
		for i, topic := range []string{flightsTopic, githubTopic} {
			fresh = append(fresh, item{client.Write{
				Topic: topic, Key: fmt.Sprintf("accept/fresh/%s/%d", secretMark, n),
				Idem: fmt.Sprintf("fresh:%s:%d", topic, n), Value: fmt.Appendf(nil, `{"fresh":%d}`, n),
			}, n + i})
		}
	}
	return fresh, s.each(ctx, fresh, s.pushOne)
}
