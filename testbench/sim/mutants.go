package main

// mutants are deviations from the protocol that break it only in rare histories.
// Each changes the product's code: the world runs the same.
var mutants = []mutant{
	// Writes, barriers, void.
	{"abort-gives-verdict", "abort markers ask, and 'no' is remembered for a producer id", []edit{
		{"internal/seat/log.go", "return len(controlKey) >= 4 && controlKey[2] == 0 && controlKey[3] == 1", "return len(controlKey) >= 4"},
		{"internal/control/barriers.go", "	b.notBarriers[m] = struct{}{}", "	m.Epoch = 0\n	b.notBarriers[m] = struct{}{}"},
		{"internal/control/barriers.go", "	_, no := b.notBarriers[m]", "	m.Epoch = 0\n	_, no := b.notBarriers[m]"},
	}},
	{"barrier-key-no-epoch", "the barrier record's key lacks the epoch, control is compacted", []edit{
		{"internal/control/record_barrier.go", "return binary.BigEndian.AppendUint16(b, uint16(x.ProducerEpoch))", "return b"},
		{"internal/control/record_barrier.go", "	return event.AppendPrefixed(append(b, codecVersion), []byte(x.Instance))", "	b = event.AppendPrefixed(append(b, codecVersion), []byte(x.Instance))\n	return binary.BigEndian.AppendUint16(b, uint16(x.ProducerEpoch))"},
		{"internal/control/record_barrier.go", ", ProducerEpoch: int16(r.Uint16())}", "}"},
		{"internal/control/record_barrier.go", "	x.Instance = string(r.Prefixed(maxText))\n", "	x.Instance = string(r.Prefixed(maxText))\n	x.ProducerEpoch = int16(r.Uint16())\n"},
	}},
	{"control-read-committed", "control is read committed, to its last stable offset", []edit{
		{"internal/control/barriers.go", "const BarriersCommitted = false", "const BarriersCommitted = true"},
	}},
	{"control-listed-before", "a marker is judged by what was read of control before it was met", []edit{
		{"internal/control/barriers.go", "if b.next < listed {", "if listed < 0 {"},
	}},
	{"control-not-awaited", "EndTxn does not wait for the control record", []edit{
		{"internal/seat/attempt.go", "return []AttemptEffect{AnnounceBarrier{a.producer, a.epoch}}", "return []AttemptEffect{AnnounceBarrier{a.producer, a.epoch}, EndTxn{}}"},
		{"internal/seat/attempt.go", "	case BarrierAnnounced:\n		if ev.Err != nil {", "	case BarrierAnnounced:\n		if a != nil {\n			return nil\n		}\n		if ev.Err != nil {"},
	}},
	{"unknown-frees-key", "a produce of unknown outcome frees its key without a barrier", []edit{
		{"internal/seat/core.go", "until the barrier is read the key stays.\n		c.begin()", "until the barrier is read the key stays.\n		c.finish(w, Answer{}, err)"},
	}},
	{"stored-term", "a process goes on under a barrier that it did not write in this life", []edit{
		{"internal/seat/core.go", "	if !c.opening.active {\n		if c.term", "	if !c.opening.active {\n		if c.term == NoBarrier {\n			c.term = m.Offset\n			c.mine = append(c.mine, ownMark{m.Producer, []int16{m.Epoch}})\n		}\n		if c.term"},
	}},
	{"answer-void", "the seat answers with what it reads back, void or not", []edit{
		{"internal/seat/core.go", "	if ev.Item.Verdict != judged.Valid {\n", "	if ev.Item.Verdict == judged.Quarantined {\n"},
	}},
	{"no-second-lookup", "a write that waited for the term is not looked up again", []edit{
		{"internal/seat/accept.go", "		if c.writes[w.Ref] == w && !c.replay(w, found[i], failed) && c.mayFollow(w) {", "		if c.writes[w.Ref] == w && (found[i] != nil || !c.replay(w, found[i], failed)) && c.mayFollow(w) {"},
	}},
	{"batch-key-twice", "two writes of one key that come together are both accepted", []edit{
		{"internal/seat/accept.go", "	if _, held := c.byKey[w.Request.Idempotency]; held && !w.Request.Idempotency.IsZero() {\n		return", "	if by, held := c.byKey[w.Request.Idempotency]; held && by.sent && !w.Request.Idempotency.IsZero() {\n		return"},
	}},
	{"batch-found-misplaced", "what the index has of a key answers another write of the batch", []edit{
		{"internal/seat/accept.go", "		found[at] = copies[i]\n", "		found[min(at, i)] = copies[i]\n"},
	}},
	{"batch-one-stamp", "the writes of a batch have one stamp", []edit{
		{"internal/seat/accept.go", "		stamp++\n", ""},
	}},
	{"order-not-awaited", "a write is sent while one before it in its order is in flight", []edit{
		{"internal/seat/chain.go", "	if w.leader != nil && (w.leader.step != c.step || !c.proven) {\n", "	if w.Ref == 0 {\n"},
	}},
	{"order-not-stopped", "what waits behind a write of its order that has failed is sent", []edit{
		{"internal/seat/chain.go", "		if !w.sent {\n			c.finish(w, Answer{}, ErrAfterFailure)", "		if w.Ref == 0 {\n			c.finish(w, Answer{}, ErrAfterFailure)"},
	}},
	{"order-before-proof", "writes of an order are sent together before anything was read back under the term", []edit{
		{"internal/seat/chain.go", "w.leader.step != c.step || !c.proven)", "w.leader.step != c.step)"},
	}},
	{"order-forgets", "an order does not remember what has failed", []edit{
		{"internal/seat/order.go", "	o.Fail(key)\n	return true\n", "	return true\n"},
	}},
	{"answer-before-read-back", "a write is answered when the broker has it", []edit{
		{"internal/seat/core.go", "	switch {\n	case w == nil || err == nil: // read back", "	switch {\n	case w != nil && err == nil:\n		c.finish(w, Answer{ID: w.id, Stamp: w.stamp}, nil)\n	case w == nil: // read back"},
	}},
	{"refused-again", "a refusal is believed of a batch that was sent twice", []edit{
		{"internal/seat/deliveries.go", "d.requests.Load()-x.requests <= 1", "d.requests.Load() >= x.requests"},
	}},
	{"seen-not-added", "a key that was stored is not noted as seen", []edit{
		{"internal/keyset/keyset.go", "	for i := range stored {\n		s.add(", "	for i := range stored[:0] {\n		s.add("},
	}},
	{"seen-not-read", "an index that is opened takes the keys of its store for unused", []edit{
		{"internal/keyset/keyset.go", "	for i := range keys {\n		s.add(", "	for i := range keys[:0] {\n		s.add("},
	}},
	{"start-without-barrier", "a reader starts inside the log without the last barrier", []edit{
		{"internal/seat/readback.go", "	return from, max(last, lastBarrier(from))", "	return from, NoBarrier"},
		{"internal/seat/inputs.go", "	in.last[own] = max(in.last[own], env.LastBarrier(here.Next))", "	in.last[own] = NoBarrier"},
	}},
	{"handover-in-transactions", "the inputs are handed what another application wrote in a transaction, whatever becomes of it", []edit{
		{"internal/seat/readback.go", "		case j.transactional:\n			b.clean =", "		case j.transactional && j.Verdict == judged.Skip:\n			b.clean ="},
	}},
	{"handover-gap", "who lags behind what was handed over goes on with what is left of it", []edit{
		{"internal/seat/handover.go", "	if from < h.first {\n", "	if from < h.first && len(h.items) == 0 {\n"},
	}},
	{"journal-gap", "the journal takes what was read back although it lacks what lies before", []edit{
		{"internal/seat/folder.go", "	return next >= s.From && next >= s.Begins", "	return next >= s.From"},
	}},
	{"journal-lacks-first", "the index has what was read back, the journal all but the first of it", []edit{
		{"internal/seat/readback.go", "Places: places[firstClean:len(places):len(places)]", "Places: places[min(firstClean+1, len(places)):len(places):len(places)]"},
	}},
	{"barrier-ignored", "a newer barrier does not make an older term's record void", []edit{
		{"internal/seat/log.go", "	case l.last > ev.Barrier:\n		return true", "	case l.last > ev.At.Offset:\n		return true"},
	}},
	{"index-first-copy", "the index keeps the first copy of a key", []edit{
		{"dedupe/memory.go", "			cs = append(cs, c)", "			if len(cs) == 0 {\n				cs = append(cs, c)\n			}"},
	}},
	{"index-smallest-stamp", "the index keeps the copy with the smallest stamp", []edit{
		{"dedupe/memory.go", "		slices.SortFunc(cs, order)", "		slices.SortFunc(cs, order)\n		cs = cs[:1]"},
	}},
	{"replay-remote-first", "a replay names the smallest copy although there is one of its own", []edit{
		{"dedupe/index.go", "		if c.At.Region == own {\n", "		if c.At.Region == own && len(last) == 1 {\n"},
	}},
	{"void-keeps-key", "a fenced record keeps its key", []edit{
		{"dedupe/index.go", "	return !c.Void && in.Judge(c.At, c.Epoch) != event.Orphan", "	return in.Judge(c.At, c.Epoch) != event.Orphan"},
	}},
	{"producers-time-in-clock", "a new term stamps above what producers without a gateway took for the time", []edit{
		{"conflict/partition.go", "	if it.Event.Stamped { // the", "	if s.cfg.Kind == Events || it.Event.Stamped { // the"},
	}},
	{"closed-over-flight", "the closed stamp ignores writes in flight", []edit{
		{"internal/seat/claims.go", "		closed = min(closed, w.stamp-1)\n", ""},
	}},
	{"promised-over-flight", "the promised vector ignores writes in flight", []edit{
		{"internal/seat/claims.go", "			promise(&promised, w.context, c.cfg.Region)\n", ""},
	}},
	{"claims-before-term", "a seat claims again before it has read a barrier of its own", []edit{
		{"internal/seat/claims.go", "	if c.term == NoBarrier && !c.cfg.NoLog || c.stopped {\n		return c.claimed", "	if c.stopped {\n		return c.claimed"},
	}},
	{"term-not-confirmed", "a seat writes under its first term though another may have published since it began", []edit{
		{"internal/seat/core.go", "	if c.confirming() {\n		c.do(ConfirmTerm{})\n		return\n	}", "	c.confirmed = true"},
	}},
	// The frontier.
	{"frontier-one-too-high", "the frontier is one higher than what was promised", []edit{
		{"conflict/frontier.go", "			lower(promised, HeldByFold, q)", "			promised.Next++\n			lower(promised, HeldByFold, q)"},
	}},
	{"frontier-own-promise", "what other regions promise is left out of frontier and floor", []edit{
		{"conflict/frontier.go", "			lower(promised, HeldByFold, q)", "			if q != s.Own {\n				promised = s.Vector[r]\n			}\n			lower(promised, HeldByFold, q)"},
	}},
	{"frontier-any-revision", "what a region says under a newer revision of the register is used", []edit{
		{"conflict/frontier.go", "t.Ownership <= s.Ownership && t.Inc", "t.Inc"},
	}},
	{"frontier-end-not-reached", "what a region says is used before its end is reached", []edit{
		{"conflict/frontier.go", " && s.reached(q, t.End) {", " {"},
	}},
	{"frontier-parts-twins", "the frontier parts copies of a key", []edit{
		{"conflict/frontier.go", "	s.keepTwins(&f)\n", ""},
	}},
	{"frontier-without-copies", "the frontier rises while the copies of keys are read again", []edit{
		{"conflict/frontier.go", "		if s.Lacking {\n			lower(s.Before[r], HeldByStore, 0)\n		}\n", ""},
	}},
	{"base-of-the-vector", "the state of an entity with events above the frontier is taken for its base", []edit{
		{"conflict/base.go", "	if !f.CoversAll(&e.Latest) {", "	if !s.out.Position.Vector.CoversAll(&e.Latest) {"},
	}},
	{"base-too-high", "a base is moved over events above the frontier", []edit{
		{"conflict/tidy.go", "return since.Covers(m.At) || !at.Frontier.Covers(m.At) })", "return since.Covers(m.At) || !at.Vector.Covers(m.At) })"},
	}},
	{"base-without-values", "a value that was displaced is looked for in the log, not in the base", []edit{
		{"conflict/fold.go", "range [][]Live{e.Live, base.Live} {", "range [][]Live{e.Live} {"},
	}},
	{"metas-dropped-above", "the journal drops metas above the frontier", []edit{
		{"conflict/tidy.go", "		s.out.Dropped = append(s.out.Dropped, Dropped{key, since})\n		return nil\n	}\n	return s.moveBase", "		s.out.Dropped = append(s.out.Dropped, Dropped{key, at.Vector})\n		return nil\n	}\n	return s.moveBase"},
	}},
	{"deletion-above-goes", "a deleted entity goes although it has events above the frontier", []edit{
		{"conflict/tidy.go", "	if at.Frontier.CoversAll(&e.Latest) {\n		return s.tidyResting", "	if at.Frontier.CoversAll(&e.Latest) || isDeleted(e) {\n		return s.tidyResting"},
	}},
	{"frontier-falls", "the frontier falls when somebody's word can no longer be used", []edit{
		{"conflict/frontier.go", "		if f.At[r].Compare(s.Before[r]) <= 0 {\n			f.At[r] = s.Before[r]\n		}\n", ""},
	}},
	{"promise-past-ending", "a seat promises more of a log whose epoch is over, before its fold has the cut", []edit{
		{"internal/seat/claims.go", "	c.keepEnding(&promised)\n", ""},
	}},
	{"promise-since-sent", "a write that has waited in an order counts as in flight from when it was sent", []edit{
		{"internal/seat/claims.go", "			promise(&promised, w.looked, c.cfg.Region)\n", ""},
	}},
	{"keys-before-index", "a key is taken for free before a lost index has read what is committed", []edit{
		{"internal/seat/accept.go", "		case a.keysUnread && a.refused == nil:\n			return ErrNotReady\n", ""},
	}},
	// Links.
	{"covered-at-once", "target-covered counts before the runs were read behind it", []edit{
		{"internal/control/links.go", " || l.runsNext[p.slot] < p.listing.upTo {", " {"},
	}},
	{"generation-not-read-again", "a shard does not read the generation again after its Init", []edit{
		{"replicate/core.go", "if ev.Found.Record != c.cfg.Generation || !ev.Found.Record.Fenced {", "if !ev.Found.Exists {"},
	}},
	{"generation-not-announced", "the old ids are fenced before the new generation is announced", []edit{
		{"replicate/agreement.go", "		a.phase = agreeAnnounce\n		a.now = Generation{\n			Number: a.now.Number + 1, Shards: a.shards,\n			Previous: a.now.Number, PreviousShards: a.now.Shards, Cluster: a.cluster,\n		}\n		return WriteGeneration{a.now}, nil", "		a.phase = agreeFence\n		a.now = Generation{\n			Number: a.now.Number + 1, Shards: a.shards,\n			Previous: a.now.Number, PreviousShards: a.now.Shards, Cluster: a.cluster,\n		}\n		return FenceShards{a.now.Previous, a.now.PreviousShards}, nil"},
	}},
	{"truncation-by-end", "a lost tail is seen only as an end below the position", []edit{
		{"replicate/incident.go", "	if l.TargetEpochEnd >= 0 {\n", "	if l.TargetEpochEnd < -1 {\n"},
	}},
	{"epoch-not-checked", "the leader epoch is not listed again behind the produce", []edit{
		{"replicate/plan.go", "listed && epoch != part.s.epoch", "listed && epoch < 0"},
	}},
	{"base-not-compared", "the offsets of the answer are not compared with the predicted ones", []edit{
		{"replicate/plan.go", "		if epoch, listed", "		ok = true\n		odd = false\n		if epoch, listed"},
	}},
	{"runs-over-markers", "runs are merged over a source marker", []edit{
		{"replicate/plan.go", " && out[last].SourceEnd() == source {", " && source > 0 {"},
	}},
	{"barriers-not-carried", "the runs do not carry the barriers", []edit{
		{"replicate/open.go", "		p.out.barrier = it.Base\n", ""},
	}},
	{"old-reading", "what was fetched for another beginning is taken", []edit{
		{"replicate/core.go", "	if ev.Reading != c.reading {\n", "	if ev.Reading > c.reading {\n"},
	}},
	{"listing-races-fetch", "a listing is compared with what was fetched after it, and what it lacks is lost", []edit{
		{"replicate/incident.go", "covered := s.coveredWhenAsked", "covered := s.nextOffset()"},
		{"replicate/core.go", "		if x.Kind == SourceTruncated && len(s.pending) > 0 {\n", "		if x.Kind == SourceTruncated && len(s.pending) > 1<<20 {\n"},
	}},
	{"predicted-end-covered", "a position covers the commit marker that was only predicted", []edit{
		{"replicate/plan.go", "max(pos.TargetCovered, p.s.listedEnd)", "max(pos.TargetCovered, p.s.end)"},
	}},
	{"unconfirmed-marker", "a reader moves over markers of a leader epoch that no position names", []edit{
		{"internal/seat/remote.go", "!in.env.Copies.Confirmed(st.origin, st.topic, in.cfg.Partition, e.LeaderEpoch)", "!in.env.Copies.Confirmed(st.origin, st.topic, in.cfg.Partition, -1)"},
	}},
	{"covered-by-newer-epoch", "a position of a newer leader epoch covers what was read under an older", []edit{
		{"internal/seat/remote.go", "	if st.epoch >= 0 && cov.Epoch > st.epoch {", "	if st.epoch >= 0 && cov.Epoch < -1 {"},
	}},
	// The fold.
	{"live-contexts", "the cover is made of the live values' contexts alone", []edit{
		{"conflict/state.go", "	s.Cover.Join(&full)\n	s.drop()", "	s.Cover = full\n	for i := range s.Live {\n		c := s.Live[i].Event.FullContext()\n		s.Cover.Join(&c)\n	}\n	s.drop()"},
	}},
	{"second-copy-ignored", "the second copy of a key is ignored whatever its stamp", []edit{
		{"conflict/fold.go", "	t := settle(copies, s.ev.At, s.cfg.Window)\n	s.reportTwins(&t)\n	switch {", "	t := settle(copies, s.ev.At, s.cfg.Window)\n	s.reportTwins(&t)\n	switch {\n	case len(copies) > 1:\n		return nil"},
	}},
	{"no-refold", "a smaller twin that comes later does not refold its entity", []edit{
		{"conflict/fold.go", "	case len(t.moved) > 0:\n		return s.revoke(s.ev.Key, &revision{}, &t)", "	case len(t.moved) > 0:\n		return s.apply(nil)"},
	}},
	{"twins-by-arrival", "of twins the one that came first stands", []edit{
		{"conflict/twins.go", "	slices.SortFunc(copies, compareCopies)\n	var groups", "	var groups"},
	}},
	{"window-without-end", "copies behind the window are twins all the same", []edit{
		{"conflict/twins.go", "copies[end].Stamp <= last {", "(copies[end].Stamp <= last || true) {"},
	}},
	{"copies-not-covered", "covering one copy does not cover the others", []edit{
		{"conflict/state.go", "	for _, c := range copies {\n		if cover.Covers(c) {", "	for _, c := range copies[:0] {\n		if cover.Covers(c) {"},
	}},
	{"clock-own-tail", "a seat's clock follows its own tail alone", []edit{
		{"internal/seat/inputs.go", "		if it.Verdict == judged.Valid && it.Event.Stamped {\n			_ = in.env.Clock", "		if it.Verdict == judged.Skip && it.Event.Stamped {\n			_ = in.env.Clock"},
	}},
	{"fold-before-journal", "the fold goes on before its journal has what it had folded", []edit{
		{"internal/seat/inputs.go", "	if !in.open && in.reached() {\n", "	if !in.open {\n"},
		{"conflict/queue.go", "	if !journal.CoversAll(committed) {\n", "	if journal == nil {\n"},
		{"conflict/queue.go", "	if it := &queue[n]; it.Verdict != judged.Cuts && it.Next.Compare(journal[it.Origin]) > 0 {", "	if queue[n].Origin > event.MaxRegion {"},
	}},
	{"copies-ahead", "the fold takes copies from the journal that its vector has not reached", []edit{
		{"conflict/partition.go", "		if !s.out.Position.Vector.Covers(c.At) || ", "		if "},
	}},
	{"metas-ahead", "a refold takes events that the vector has not reached", []edit{
		{"conflict/fold.go", "return since.Covers(m.At) || !s.out.Position.Vector.Covers(m.At) })", "return since.Covers(m.At) })"},
	}},
	{"cover-trimmed", "the cover forgets what the vector has not reached", []edit{
		{"conflict/state.go", "if s.Cover[r].Compare(vector[r]) <= 0 {", "if s.Cover[r].Compare(vector[r]) <= 1<<30 {"},
	}},
	{"feed-repeats", "the feed does not remember what it has told", []edit{
		{"conflict/entity.go", "e.Reported = append(e.Reported, Reported{Lost: loser.At, Won: winner})", "e.Reported = append(e.Reported[:0:0], Reported{Lost: loser.At, Won: winner})[:0]"},
	}},
	{"feed-silent", "the feed leaves out a loser that was never shown", []edit{
		{"conflict/entity.go", "		case at < 0:\n			say(Concurrent, loser, winner)", "		case at < 0 && loser.At != e.Shown:\n		case at < 0:\n			say(Concurrent, loser, winner)"},
	}},
	{"events-each-copy", "the merged view of events has each copy", []edit{
		{"conflict/events.go", "	if len(shown) < len(t.groups) {", "	if len(shown) < len(copies) {"},
	}},
	{"no-aliases", "a cursor knows no aliases", []edit{
		{"conflict/store.go", "	if at < 0 {\n		return nil\n	}", "	if at >= -1 {\n		return nil\n	}"},
	}},
	// Owners and cuts. That a seat accepts only once its index has read to the cuts of
	// the unit's earlier epochs cannot be told from what its own barrier enforces, as
	// long as a unit goes back to the region that owned it last; it becomes a mutant
	// with the plans that move units between regions.
	{"seat-no-second-check", "a seat answers though its lease has ended meanwhile", []edit{
		{"internal/seat/permit.go", "	return c.held.holds\n", "	return g.Live != 0\n"},
	}},
	{"newer-epoch-is-orphan", "a reader calls a record of an epoch above those it knows an orphan", []edit{
		{"internal/event/validity.go", "	if epoch > log.Known {\n		return Unsettled\n", "	if epoch > log.Known {\n		return Orphan\n"},
	}},
	{"newer-epoch-counts", "a record of an epoch above those that are known is not held", []edit{
		{"internal/event/validity.go", "	if epoch > log.Known {\n		return Unsettled\n", "	if epoch > log.Known {\n		return Authoritative\n"},
	}},
	{"epoch-ignored", "a record in an interval counts whatever its epoch", []edit{
		{"internal/event/validity.go", "	if epoch == 0 {\n		return log.unstamped(at)", "	if epoch <= log.Known {\n		return log.unstamped(at)"},
	}},
	{"left-out-is-cut", "a cut that leaves a partition out ends its log at 0", []edit{
		{"router/ownership/intervals.go", "			case next == len(u.Epochs):\n				t.Ended = false\n", "			case next == len(u.Epochs):\n"},
	}},
	{"orphan-keeps-key", "an orphan keeps its key", []edit{
		{"dedupe/index.go", "	return !c.Void && in.Judge(c.At, c.Epoch) != event.Orphan", "	return !c.Void && (in == nil || c.Stamp > 0)"},
	}},
	{"orphans-folded", "the fold counts what is given to it as an orphan", []edit{
		{"conflict/partition.go", "	if it.Verdict == judged.Orphan || at.Validity.Judge(it.Event.At, it.Event.Epoch) == event.Orphan {", "	if it.Verdict == judged.Cuts {"},
	}},
	{"late-cut-not-revoked", "a cut that is known late leaves what was folded past it", []edit{
		{"internal/seat/takeover.go", "	g.in.do(FoldItems{g.orphans})\n", ""},
	}},
	{"start-revokes-nothing", "a start that comes to be known leaves what was folded below it", []edit{
		{"internal/event/validity.go", "		if o == nil && i > 0 {", "		if o == nil && i > len(list) {"},
	}},
	{"copies-never-revive", "a copy that was void does not revive when the one that stood is an orphan", []edit{
		{"conflict/base.go", "			copies, err := s.copies(m.Key, s.table)", "			copies, err := s.copies(m.Key, nil)"},
		{"conflict/orphans.go", "	if s.out.Position.Revoking == 0 {\n		return false, nil", "	if table == nil || s.out.Position.Revoking == 0 {\n		return false, nil"},
	}},
	{"journal-drops-orphans", "the journal keeps nothing of an orphan, whatever becomes of the table", []edit{
		{"conflict/store.go", "		if it.Verdict != judged.Valid && it.Verdict != judged.Orphan || ", "		if it.Verdict != judged.Valid || "},
	}},
	{"refold-with-orphans", "a refold takes orphans in", []edit{
		{"conflict/orphans.go", "	if table.Judge(at, epoch) == event.Orphan {\n", "	if table == nil {\n		return false, nil\n	}\n	if epoch > 1<<40 {\n"},
	}},
	{"no-retraction", "an orphan that was emitted is not taken back", []edit{
		{"conflict/events.go", "	s.out.Merged = append(s.out.Merged, Merged{Event: gone, Corrects: true})", "	_ = gone"},
	}},
	{"link-ignores-cuts", "a link goes on past a cut that it knows", []edit{
		{"replicate/intervals.go", "	for at := int64(0); at != event.NoCut; {", "	for at := event.NoCut; at != event.NoCut; {"},
	}},
	{"cut-during-audit", "what was decided before a cut came to be known is sent past it", []edit{
		{"replicate/plan.go", "!c.rulingCurrent(part.s) || part.lapsesVersion != part.s.lapsesVersion", "!c.rulingCurrent(part.s) || part.lapsesVersion < 0"},
	}},
	// Borders.
	{"old-ruling-used", "a ruling of a policy that is not in force any more is used", []edit{
		{"replicate/core.go", "return s.Ruling == nil || s.Ruling.Version == c.policyVersion", "return s.Ruling == nil || s.Ruling.Version <= c.policyVersion"},
	}},
	{"restricted-uses-vector", "a context takes restricted origins from the vector", []edit{
		{"conflict/state.go", "		vector[r] = event.Point{}\n		for i := range s.Live {", "		for i := range s.Live {"},
	}},
	{"restriction-lifted", "a restriction that is lifted lets the vector be used again", []edit{
		{"replicate/plan.go", "	return s.pos.Restricted || s.Ruling != nil", "	return s.Ruling != nil"},
		{"conflict/partition.go", "	if it.Restricted {\n		at.Restricted |= 1 << it.Origin\n	}", "	at.Restricted |= 1 << it.Origin\n	if !it.Restricted {\n		at.Restricted &^= 1 << it.Origin\n	}"},
		{"conflict/queue.go", "(p.Restricted | announced) &^", "p.Restricted &^"},
	}},
	{"restriction-not-carried", "positions and runs do not say that records may be missing", []edit{
		{"replicate/plan.go", "	return s.pos.Restricted || s.Ruling != nil && s.Ruling.Effect == residency.PerRecord", "	return s.Ruling != nil && s.Ruling.Effect > residency.PerRecord"},
		{"conflict/queue.go", "(p.Restricted | announced) &^", "p.Restricted &^"},
	}},
	{"superseded-verdict-counts", "what a deposed instance decides counts", []edit{
		{"residency/audit.go", "		cmp.Compare(a.ProducerEpoch, before.ProducerEpoch)) >= 0", "		cmp.Compare(a.ProducerEpoch, before.ProducerEpoch)) >= -1"},
	}},
}
