package replicate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/residency"
)

const (
	auditWait     = 10 * time.Second // for the source to store what was decided
	runsInAudit   = 1 << 14          // of one record, which a broker must take
	announceRetry = 200 * time.Millisecond
)

// prepareAudit makes the topics of the source that a link with a policy writes.
// The audit is kept until somebody decides otherwise: it is the proof.
func prepareAudit(ctx context.Context, source *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, adminWait)
	defer cancel()
	keep := map[string]*string{"cleanup.policy": kadm.StringPtr("delete"), "retention.ms": kadm.StringPtr("-1")}
	if err := createTopic(ctx, source, control.TopicAudit, control.AuditPartitions, keep); err != nil {
		return err
	}
	if _, err := awaitTopic(ctx, source, control.TopicAudit); err != nil {
		return err
	}
	compact := map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}
	if err := createTopic(ctx, source, control.TopicControl, 1, compact); err != nil {
		return err
	}
	_, err := awaitTopic(ctx, source, control.TopicControl)
	return err
}

// audit stores what was decided. All records of one source partition have one
// key and so lie in one partition, in order.
func (s *shard) audit(ctx context.Context, decided []Decided) error {
	now := time.Now()
	records := make([]*kgo.Record, 0, len(decided))
	for _, d := range decided {
		r := d.Stream.Ruling
		a := residency.Audit{
			To: s.cfg.To.ID, ID: d.Stream.Source, Topic: d.Stream.Topic, Partition: d.Stream.Number,
			Incarnation: d.Stream.Incarnation, Revision: r.Revision, Digest: r.Digest,
			Generation: s.gen.Number, ProducerID: s.producer.ProducerID(), ProducerEpoch: s.producer.Epoch(),
		}
		for a.Runs = range slices.Chunk(d.Runs, runsInAudit) {
			records = append(records, &kgo.Record{Topic: control.TopicAudit, Key: a.AppendKey(nil), Value: a.AppendValue(nil), Timestamp: now})
		}
	}
	if err := store(ctx, s.source, auditWait, records...); err != nil {
		return fmt.Errorf("write audit: %w", err)
	}
	return nil
}

// store produces records and waits until they are acknowledged, at most for a
// while: a client gives up nothing that it has sent, so waiting for it alone could
// last as long as the broker is away.
func store(ctx context.Context, cl *kgo.Client, wait time.Duration, records ...*kgo.Record) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	done := make(chan error, len(records))
	for _, r := range records {
		cl.Produce(ctx, r, func(_ *kgo.Record, err error) { done <- err })
	}
	var errs []error
	for range records {
		select {
		case err := <-done:
			errs = append(errs, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.Join(errs...)
}

// refresh forgets the rulings of another version of the policy.
func (d *discovery) refresh() {
	d.announcementPending = false
	if g := d.cfg.Border; g != nil {
		if v := g.Version(); v != d.version || d.rulings == nil {
			d.version, d.rulings = v, map[string]*residency.Ruling{}
		}
	}
}

// askPolicy asks the policy about a topic that the patterns include, and puts the
// answer into r.
func (d *discovery) askPolicy(ctx context.Context, r *TopicRuling) (*residency.Ruling, error) {
	g := d.cfg.Border
	if g == nil || !r.Carried {
		return nil, nil
	}
	ruling := d.rulings[r.Topic]
	if ruling == nil {
		ruling = g.Rule(r.Topic, d.cfg.From.Name, d.cfg.To.Name)
		d.rulings[r.Topic] = ruling
	}
	r.Reason += "; residency: " + ruling.Reason()
	switch ruling.Effect {
	case residency.Allow:
		return ruling, nil
	case residency.Deny:
		r.Carried, r.Denied, r.Remote = false, true, ""
		return nil, nil
	}
	if d.cfg.Restrictable != nil {
		if err := d.cfg.Restrictable(r.Topic); err != nil {
			r.Carried, r.Blocked, r.Remote = false, true, ""
			r.Reason = err.Error()
			return nil, nil
		}
	}
	known, err := d.announce(ctx, r.Topic)
	if err != nil {
		return nil, err
	}
	if !known {
		r.Carried, r.Remote = false, ""
		r.Reason += "; waiting until the target has been told that records may be missing"
		d.announcementPending = true
	}
	return ruling, nil
}

// announce says in the source's control topic that single records of a topic may
// be missing at the target, and tells whether the link has committed that there.
// Before, nothing is sent under such rules: the target's writes would claim to
// have seen what it was never shown. It is never taken back.
func (d *discovery) announce(ctx context.Context, topic string) (known bool, err error) {
	after, announced := d.announced[topic]
	if !announced {
		d.facts.Announced(topic)
		x := control.Restriction{Origin: d.cfg.From.ID, To: d.cfg.To.ID, Topic: topic}
		rec := &kgo.Record{Topic: control.TopicControl, Key: x.AppendKey(nil), Value: x.AppendValue(nil)}
		if err := store(ctx, d.source, auditWait, rec); err != nil {
			return false, fmt.Errorf("announce restriction of %s: %w", topic, err)
		}
		after = rec.Offset + 1
		d.announced[topic] = after
	}
	return d.covered() >= after, nil
}
