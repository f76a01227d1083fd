package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// commitTimeout bounds one transaction. It does not end with Run's context, so
// that a stop leaves a whole step.
const commitTimeout = 20 * time.Second

// stopTimeout is how long a transaction may still take that is in progress when the
// view stops. If it is cut short, the next term reads what became of it.
const stopTimeout = time.Second

// errTaken: another instance of the region folds the partition. Only an initialisation
// says so: a step is refused in the same way when the cluster has ended its transaction
// because it took too long, as after a suspension.
var errTaken = errors.New("another instance has taken the partition's transactional id")

// turn waits until the partition may have a transaction; release must be called after it.
func (v *View) turn(ctx context.Context) (release func(), err error) {
	if v.cfg.Transactions == nil {
		return func() {}, nil
	}
	if err := v.cfg.Transactions.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("wait for transactions of other partitions: %w", err)
	}
	return func() { v.cfg.Transactions.Release(1) }, nil
}

// restore takes the partition: it ends whatever an earlier holder had open, reads
// the state topic committed to a high watermark listed after that, and goes on
// from the vector found there.
func (v *View) restore(ctx context.Context) error {
	release, err := v.turn(ctx)
	if err != nil {
		return err
	}
	err = v.producer.Init(ctx)
	release()
	switch {
	case errors.Is(err, txn.ErrFenced):
		return fmt.Errorf("%w: %w", errTaken, err)
	case err != nil:
		return err
	}
	state := control.StateOf(v.cfg.Topic)
	v.cfg.Topics.Forget(state) // it may have been recreated
	topic, err := v.cfg.Topics.Lookup(ctx, state)
	if err != nil {
		return err
	}
	from, to, err := v.bounds(ctx, state)
	if err != nil {
		return err
	}
	if _, merged, err := v.bounds(ctx, v.cfg.Merged); err != nil {
		return err
	} else if err := v.readState(ctx, topic, from, to); err != nil {
		return err
	} else if err := v.resume(merged); err != nil {
		return err
	}
	return nil
}

// bounds are start and high watermark of the partition in a topic.
func (v *View) bounds(ctx context.Context, topic string) (start, end int64, err error) {
	p := txn.TopicPartition{Topic: topic, Partition: v.cfg.Partition}
	if start, err = txn.OffsetOf(ctx, v.cfg.Client, p, txn.LogStart); err != nil {
		return 0, 0, err
	}
	if end, err = txn.OffsetOf(ctx, v.cfg.Client, p, txn.LogEnd); err != nil {
		return 0, 0, err
	}
	return start, end, nil
}

// readState brings the cache of the state topic up to date. A cache that is of
// another topic, of offsets that this one does not have, or older than what the topic
// remembers, is dropped.
func (v *View) readState(ctx context.Context, topic txn.Topic, from, to int64) error {
	v.store.decoded.clear() // what the failed step left is stale
	if err := v.store.findPieces(); err != nil {
		return err
	}
	id, cached, at, err := v.store.cached()
	if err != nil {
		return err
	}
	now := v.cfg.Wall()
	if v.cache == cacheDamaged {
		v.cfg.Logger.Warn("the cache of a state topic cannot be read; filling it again", "topic", topic.Name, "partition", v.cfg.Partition)
		cached, v.cache = -1, cacheRefilled
	}
	// The marker of the last step's transaction may lie behind what is cached; a transaction
	// of another instance is more than that.
	others := to > cached+1
	if id != topic.ID || cached < from || cached > to || others && v.outlived(ctx, topic.Name, at, now) {
		if err := v.store.drop(); err != nil {
			return err
		}
		cached = from
	}
	v.stateID = topic.ID
	b := newBatch(v.cfg.DB)
	defer b.discard()
	tp := txn.TopicPartition{Topic: topic.Name, Partition: v.cfg.Partition}
	_, err = txn.ReadCommitted(ctx, v.cfg.Topics, v.cfg.Decoder.Derived(), tp, cached, to, func(r *txn.Record) error {
		err := r.Refused
		if err == nil {
			err = checkState(r.Key, r.Value, v.cfg.Partition)
		}
		if err != nil {
			v.skipState(topic.Name, r.Offset, err)
			return nil
		}
		if err = v.store.put(b, change{r.Key, r.Value}); err == nil {
			err = v.store.noteDeleted(b, change{r.Key, r.Value})
		}
		if errors.Is(err, badger.ErrTxnTooBig) { // alone in its transaction
			v.skipState(topic.Name, r.Offset, fmt.Errorf("%w: value of %d bytes", event.ErrMalformed, len(r.Value)))
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := v.store.setCached(b, topic.ID, to, now); err != nil {
		return err
	}
	return b.commit()
}

// resume makes what the cache has the committed state. merged is the end of the
// merged partition: after Init nothing of an open transaction can come there.
func (v *View) resume(merged int64) error {
	at, chain, err := v.store.load()
	if err != nil {
		return err
	}
	orphans, err := v.store.countOrphans()
	if err != nil {
		return err
	}
	at.boundStamp(v.cfg.Wall())
	v.at = at
	v.tidying = tidier{bare: v.tidying.bare, dueAt: v.tidying.dueAt, allAt: v.tidying.allAt}
	v.journal.begin(at.Needed, at.NeededBarriers)
	v.fold = conflict.NewPartition(v.cfg.Fold, v.store, at.Position)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.restored {
		chain = v.chain // finer, and still true
	}
	chain.cut(merged)
	v.vectorOffset, v.mergedEnd = merged, merged
	if at.Reached > 0 {
		v.vectorOffset = min(merged, at.Reached-1)
	}
	chain.add(Checkpoint{v.vectorOffset, at.Vector}, false)
	v.chain, v.committed = chain, at.Position
	v.status.Orphans = orphans
	if !v.restored {
		v.restored = true
		close(v.ready)
	}
	v.notify()
	return nil
}

// step folds what was taken.
func (v *View) step(ctx context.Context) error {
	if f := v.cfg.Fetcher; f != nil {
		v.store.fetch = func(d event.Dot) (event.Event, error) { return f.Fetch(ctx, d) }
	}
	v.raise()
	out, err := v.fold.Step(v.taken.list...)
	v.store.fetch = nil
	if err != nil {
		return err
	}
	if out.Position == v.fold.Position() && len(out.Orphans) == 0 {
		v.committedBefore()
		return nil
	}
	now := v.cfg.Wall()
	if v.schedule.mayTell(now) {
		if err := v.lookFrontier(now); err != nil {
			return err
		}
	}
	defer v.mem.release()
	states := v.states(out)
	packing, err := v.pack(ctx, out, states, now)
	if err != nil {
		return err
	}
	told, tells := v.tellNow(now)
	if tells {
		rec := progressRecord(&told, now)
		if err := packing.Add(&rec); err != nil {
			return err
		}
	}
	release, err := v.turn(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	bases, err := v.commit(ctx, packing)
	took := time.Since(began)
	release()
	v.pace(took)
	if err != nil {
		if err = v.afterRefusal(ctx, err, out); err != nil {
			if took > slowStep {
				v.giveBack(v.taken.items / 2) // less may pass in time
			}
			return err
		}
		return v.restore(ctx) // and the same items again
	}
	if tells {
		v.schedule.wrote(told, now)
	}
	return v.settle(out, states, bases)
}

// pace sets how large the next step may be, and how soon it may come, by how long a transaction
// took.
func (v *View) pace(took time.Duration) {
	v.took = took
	switch {
	case took > slowStep:
		v.limit = max(leastStep, min(v.limit, v.taken.bytes)/2)
	case took < fastStep:
		v.limit = min(stepBytes, 2*v.limit)
	}
}

// committedBefore lets the taken items go: all of them were committed by a transaction whose
// outcome was not known.
func (v *View) committedBefore() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.countReplaced()
	v.refusals.settled(v.taken.items)
	v.letGo()
}

// letGo lets the taken items go; the caller holds mu.
func (v *View) letGo() {
	v.leaveRoom(v.taken.bytes)
	v.taken = itemParts{}
}

func (v *View) commit(ctx context.Context, packing *txn.Packing) (map[txn.TopicPartition]int64, error) {
	longer, release := txn.WithGrace(ctx, stopTimeout)
	defer release()
	longer, cancel := context.WithTimeout(longer, commitTimeout)
	defer cancel()
	return v.producer.CommitPacked(longer, packing)
}

// pack packs a step's records: merged, conflicts, and state records, of which the vector
// is the last. Where each has a batch of its own, about says which it is.
func (v *View) pack(ctx context.Context, out *conflict.Output, states []change, now time.Time) (*txn.Packing, error) {
	defer func() { clear(v.headers[:cap(v.headers)]) }() // they share the memory of a fetched batch
	packing := v.producer.Pack()
	if v.refusals.apart() {
		packing = v.producer.PackApart()
	}
	for i := range out.Merged {
		rec, err := v.mergedRecord(ctx, &out.Merged[i], now)
		if err != nil {
			return nil, err
		}
		if err := packing.Add(&rec); err != nil {
			return nil, err
		}
	}
	for i := range out.Conflicts {
		value, err := appendConflict(v.cfg.Topic, &out.Conflicts[i], v.cfg.Names)
		if err != nil {
			return nil, err
		}
		rec := txn.Record{
			Topic: control.TopicConflicts, Partition: v.cfg.ConflictPartition, Key: []byte(v.cfg.Topic), Value: value, Timestamp: now.UnixMilli(),
		}
		if err := packing.Add(&rec); err != nil {
			return nil, err
		}
	}
	rec := txn.Record{Topic: control.StateOf(v.cfg.Topic), Partition: v.cfg.Partition, Timestamp: now.UnixMilli()}
	for _, c := range states {
		rec.Key, rec.Value = c.key, c.value
		if err := packing.Add(&rec); err != nil {
			return nil, err
		}
	}
	return packing, nil
}

// about is what is known of a record of a step, by its number in what pack has packed.
func (v *View) about(out *conflict.Output, index int) stepRecord {
	if index < 0 {
		return stepRecord{}
	}
	if index < len(out.Merged) {
		at := out.Merged[index].Event.At
		return stepRecord{mergedName(at), at}
	}
	index -= len(out.Merged) + len(out.Conflicts)
	if index >= 0 && index < len(out.Entities) { // the first of the state records
		c := &out.Entities[index]
		return stepRecord{entityName(c.Key), newestOf(&c.Entity.State)}
	}
	index -= len(out.Entities)
	if index >= 0 && index < len(out.Bases) {
		c := &out.Bases[index]
		return stepRecord{baseName(c.Key), newestOf(&c.Base.State)}
	}
	return stepRecord{}
}

// states are a step's state records, those of entities first, then bases. They live in mem.
func (v *View) states(out *conflict.Output) []change {
	states := make([]change, 0, len(out.Entities)+len(out.Bases)+len(out.Twins)+len(out.Orphans)+2)
	for i := range out.Entities {
		key := v.mem.add(1+len(out.Entities[i].Key), func(b []byte) []byte { return append(append(b, typeEntity), out.Entities[i].Key...) })
		states = append(states, change{key, v.entityValue(&out.Entities[i])})
	}
	for i := range out.Bases {
		states = append(states, change{baseKey(out.Bases[i].Key), v.baseValue(&out.Bases[i])})
	}
	for i := range out.Twins {
		c := change{key: twinKey(out.Twins[i].Key)}
		if len(out.Twins[i].Copies) > 0 {
			c.value = appendTwin(nil, &out.Twins[i])
		}
		states = append(states, c)
	}
	for i := range out.Orphans {
		o := &out.Orphans[i]
		states = append(states, change{orphanKey(o.At), appendOrphan(nil, o)})
	}
	v.mu.Lock()
	for _, offset := range v.chain.thin() {
		states = append(states, change{key: checkpointKey(offset)})
	}
	if c, due := v.chain.due(); due {
		states = append(states, change{checkpointKey(c.Offset), appendCheckpoint(nil, &c.Vector)})
	}
	reached := v.vectorOffset
	v.mu.Unlock()
	at := v.at.after(out, reached)
	return append(states, change{vectorKey(), at.append(nil)})
}

// settle makes a committed step visible: first in the store, then in the vector.
func (v *View) settle(out *conflict.Output, states []change, bases map[txn.TopicPartition]int64) error {
	items := v.taken.items
	v.mu.Lock()
	v.letGo()
	v.mu.Unlock()
	v.foldedAt = time.Now()
	v.fold.Commit(out)
	moved := out.Position.Vector != v.at.Vector
	v.at = v.at.after(out, v.vectorOffset) // only this goroutine changes reached
	state := control.StateOf(v.cfg.Topic)
	fresh, err := v.newOrphans(out)
	if err != nil {
		return err
	}
	b := newBatch(v.cfg.DB)
	defer b.discard()
	for _, c := range states {
		if err := v.store.put(b, c); err != nil {
			return err
		}
	}
	next := bases[txn.TopicPartition{Topic: state, Partition: v.cfg.Partition}] + int64(len(states))
	if err := v.store.setCached(b, v.stateID, next, v.cfg.Wall()); err != nil {
		return err
	}
	if err := b.commit(); err != nil {
		return err
	}
	for i := range out.Entities {
		v.store.decoded.put(out.Entities[i].Key, out.Entities[i].Entity)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range states {
		if c.key[0] == typeCheckpoint && c.value != nil {
			if x, err := parseCheckpoint(c.key, c.value); err == nil {
				v.chain.add(x, true)
			}
		}
	}
	// Corrections that a cut makes come without the vector moving: whoever has read
	// up to the vector need not have read them.
	if len(out.Merged) > 0 {
		v.mergedEnd = bases[txn.TopicPartition{Topic: v.cfg.Merged, Partition: v.cfg.Partition}] + int64(len(out.Merged))
	}
	if moved {
		if v.vectorOffset = v.mergedEnd; len(out.Merged) > 0 {
			v.chain.add(Checkpoint{v.vectorOffset, out.Position.Vector}, false)
		}
	}
	v.committed = out.Position
	v.count(out)
	v.countReplaced()
	v.refusals.settled(items)
	for _, o := range fresh {
		v.status.Orphans[o.At.Region]++
		if o.At.Region == v.cfg.Region && o.Epoch == 0 {
			v.status.NativeOrphans++
			v.status.NativeOrphan = o.At
		}
	}
	v.notify()
	return nil
}

// newOrphans are the orphans of a step that the store does not have yet.
func (v *View) newOrphans(out *conflict.Output) (fresh []*conflict.Orphaned, err error) {
	for i := range out.Orphans {
		_, known, err := v.store.Orphan(out.Orphans[i].At)
		if err != nil {
			return nil, err
		}
		if !known {
			fresh = append(fresh, &out.Orphans[i])
		}
	}
	return fresh, nil
}

func (v *View) count(out *conflict.Output) {
	st, n := &v.status, &out.Counts
	st.Steps++
	st.Merged += uint64(len(out.Merged))
	st.Conflicts += uint64(len(out.Conflicts))
	st.Counts.Folded += n.Folded
	st.Counts.Void += n.Void
	st.Counts.Skipped += n.Skipped
	st.Counts.Twins += n.Twins
	st.Counts.Corrections += n.Corrections
	st.Counts.Refolds += n.Refolds
	st.Counts.Orphans += n.Orphans
	st.Counts.BasesMoved += n.BasesMoved
	st.Counts.Gone += n.Gone
	for why, k := range n.Quarantined {
		if st.Counts.Quarantined == nil {
			st.Counts.Quarantined = map[string]int{}
		}
		st.Counts.Quarantined[why] += k
	}
}
