package retention

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Use is what a topic is to its readers. It decides what its settings must be.
type Use uint8

// The uses.
const (
	// Log is a local topic, or the copy of one: its records are needed until all have
	// read them, and for the idempotency window.
	Log Use = iota + 1
	// Latest is an internal topic of which the latest record of each key is needed.
	Latest
	// Forever is an internal topic of which every record is needed for good.
	Forever
)

// tombstones is how long a reader of a compacted topic may take from the value of a key to
// its tombstone.
const tombstones = 10 * time.Minute

// Topic is a topic that a gateway needs.
type Topic struct {
	Name string
	ID   [16]byte // of this topic, which another of the same name does not have
	Use  Use
	// Compactable says of a log that its owner may have it compacted.
	Compactable bool
}

// Shortfall is a setting with which records are deleted that are needed.
type Shortfall struct {
	Setting, Value string
	Must           string // in words, after "must be"
	Why            string // in words, after "because"
	Set            string // a value that is enough
}

// Settings of topics.
const (
	cleanupPolicy   = "cleanup.policy"
	retentionMS     = "retention.ms"
	retentionBytes  = "retention.bytes"
	deleteRetention = "delete.retention.ms"
)

// Settings compares a topic's settings, as the broker applies them, with what is needed.
// What the broker does not tell is taken to be enough.
func (t Topic) Settings(have map[string]string, window time.Duration) (out []Shortfall) {
	compacts, deletes := policies(have)
	number := func(key string) (n int64, ok bool) {
		n, err := strconv.ParseInt(have[key], 10, 64)
		return n, err == nil && n >= 0
	}
	least := func(key string, d time.Duration, why string) {
		if n, ok := number(key); ok && n < d.Milliseconds() {
			must := fmt.Sprintf("at least %d", d.Milliseconds())
			if key == retentionMS {
				must += ", or -1"
			}
			out = append(out, Shortfall{key, have[key], must, why, strconv.FormatInt(d.Milliseconds(), 10)})
		}
	}
	policy := func(want, why string) {
		out = append(out, Shortfall{cleanupPolicy, have[cleanupPolicy], want, why, want})
	}
	switch t.Use {
	case Log:
		if compacts && !t.Compactable {
			policy("delete", "compaction may drop a record that counts and keep one that is void")
		}
		if deletes {
			least(retentionMS, window, fmt.Sprintf("the keys of the idempotency window (%s) cannot be rebuilt from the log after the loss of a store", window))
		}
	case Latest:
		if have[cleanupPolicy] != "" && (!compacts || deletes) {
			policy("compact", "what is old is deleted though it is the latest of its key")
		}
		least(deleteRetention, tombstones, "a reader may miss that a key was deleted")
	case Forever:
		if compacts || !deletes {
			policy("delete", "every record is needed")
		}
		for _, key := range []string{retentionMS, retentionBytes} {
			if _, ends := number(key); ends {
				out = append(out, Shortfall{key, have[key], "-1", "every record is needed", "-1"})
			}
		}
	}
	return out
}

// policies reads cleanup.policy. The default of Kafka is delete.
func policies(have map[string]string) (compacts, deletes bool) {
	text := have[cleanupPolicy]
	compacts = strings.Contains(text, "compact")
	return compacts, !compacts || strings.Contains(text, "delete")
}

// command is the command that gives a topic a setting.
func command(server, topic, setting, value string) string {
	return fmt.Sprintf("kafka-configs.sh --bootstrap-server %s --alter --topic %s --add-config %s=%s", server, topic, setting, value)
}
