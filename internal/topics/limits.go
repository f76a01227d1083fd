package topics

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/event"
)

const (
	// followEvery is how long a change of a topic's settings may go unseen. A record that is
	// refused meanwhile has them looked at once.
	followEvery = time.Minute
	// describedAtOnce bounds the topics of one request for settings; each local one has two
	// derived ones.
	describedAtOnce = 300

	// acceptRoom is more than what a record that is accepted gets: its envelope, and the
	// batch around it. A derived record has more beside the value: other live values' places,
	// losers that were reported.
	acceptRoom  = 1 << 10
	derivedRoom = 8 << 10
	// leastRecord is accepted whatever the settings say: derived topics that cannot hold even
	// that have pointers to the log.
	leastRecord = 1 << 10
)

// Widen gives what is derived from a local topic the limits that it needs now, and tells
// whether it had others: somebody may have changed them, or those of the local topic.
func (c *Catalogue) Widen(ctx context.Context, topic gateway.Topic) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	return c.follow(ctx, topic)
}

// followSettings looks at the settings of all topics of which something was derived.
func (c *Catalogue) followSettings(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	var list []gateway.Topic
	c.mu.Lock()
	for of, d := range c.derived {
		select {
		case <-d.done:
			if d.err == nil && event.TopicID(c.known[of.name].ID) == of.id {
				list = append(list, gateway.Topic{Name: of.name, ID: of.id, Partitions: of.partitions, Domain: c.policy.Domain(of.name)})
			}
		default:
		}
	}
	c.mu.Unlock()
	var errs []error
	for some := range slices.Chunk(list, describedAtOnce/3) {
		_, err := c.follow(ctx, some...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// follow looks at the settings of local topics and of what is derived from them: it gives the
// derived ones the limits that they need, which is true if they had others, and remembers the
// largest record that all of them take.
func (c *Catalogue) follow(ctx context.Context, list ...gateway.Topic) (changed bool, err error) {
	var names []string
	for _, t := range list {
		state, merged := c.derivedSpecs(t, nil)
		names = append(names, t.Name, state.name, merged.name)
	}
	all, err := c.configsOf(ctx, names...)
	if err != nil {
		return false, err
	}
	var errs []error
	for _, t := range list {
		local := all[t.Name]
		if local == nil {
			continue
		}
		state, merged := c.derivedSpecs(t, local)
		limit := gateway.RecordLimit{Topic: t.Name, Bytes: maxRecord(local, acceptRoom)}
		for _, s := range []spec{state, merged} {
			have := all[s.name]
			if have == nil {
				continue
			}
			widened, err := c.widen(ctx, s, have)
			changed = changed || widened
			errs = append(errs, err)
			if n := maxRecord(have, derivedRoom); n < limit.Bytes {
				limit = gateway.RecordLimit{Topic: s.name, Bytes: n}
			}
		}
		c.mu.Lock()
		c.limits[t.Name] = limit
		c.mu.Unlock()
	}
	return changed, errors.Join(errs...)
}

// maxRecord is the largest record that a topic with these settings takes with room for
// what is added to it.
func maxRecord(configs map[string]string, room int64) int64 {
	limit, err := strconv.ParseInt(configs[maxMessageBytes], 10, 64)
	if err != nil {
		limit = defaultMaxMessage
	}
	return max(leastRecord, limit-room)
}

// limited is a topic with the largest record that it takes, as far as that is known.
func (c *Catalogue) limited(t gateway.Topic) gateway.Topic {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Limit = c.limits[t.Name]
	return t
}
