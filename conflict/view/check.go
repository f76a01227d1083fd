package view

import (
	"errors"
	"fmt"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/warning"
)

// maxStateKey bounds the key of a state record, in bytes: the store takes keys of 65,000,
// with what it puts before them. Keys of the records themselves are shorter.
const maxStateKey = 64_000

const (
	dotPartSize       = 1 + 2 + 8
	twinKeySize       = 1 + len(event.IdempotencyKey{})
	checkpointKeySize = 1 + 8
	orphanKeySize     = 1 + dotPartSize
)

// checkState says what is wrong with a record of a partition's state topic. Whoever may
// write the topic can put anything there. What passes is of a form that a view writes, to
// the last byte, so that nothing that reads the cache later fails.
func checkState(key, value []byte, partition int32) error {
	if err := checkStateKey(key); err != nil {
		return err
	}
	switch key[0] {
	case typeVector, typeOrphan: // nobody takes these out
	default:
		if value == nil {
			return nil
		}
	}
	switch key[0] {
	case typeVector:
		_, err := parseVector(value)
		return err
	case typeEntity:
		_, err := parseEntity(key[1:], value)
		return err
	case typeBase:
		_, err := parseBase(key[1:], value)
		return err
	case typeTwin:
		_, err := parseTwin(event.IdempotencyKey(key[1:]), value)
		return err
	case typeCheckpoint:
		_, err := parseCheckpoint(key, value)
		return err
	}
	_, err := parseOrphan(key, value, partition)
	return err
}

// checkStateKey says what is wrong with the key alone.
func checkStateKey(key []byte) error {
	if len(key) == 0 || len(key) > maxStateKey {
		return fmt.Errorf("%w: state key of %d bytes", event.ErrMalformed, len(key))
	}
	want := len(key)
	switch key[0] {
	case typeVector:
		want = 1
	case typeEntity, typeBase:
	case typeTwin:
		want = twinKeySize
	case typeCheckpoint:
		want = checkpointKeySize
	case typeOrphan:
		want = orphanKeySize
	default:
		return fmt.Errorf("state record of type %d: %w", key[0], warning.ErrUnknown)
	}
	if len(key) != want {
		return fmt.Errorf("%w: state key of %d bytes for type %d, want %d", event.ErrMalformed, len(key), key[0], want)
	}
	return nil
}

// skipState passes over a record of the state topic that cannot be used.
func (v *View) skipState(topic string, offset int64, err error) {
	if v.cfg.Skipped.Add(topic, v.cfg.Partition, offset, err) {
		v.cfg.Logger.Error("state record cannot be used and is skipped", "topic", topic, "partition", v.cfg.Partition, "offset", offset, "err", err)
	}
}

// damaged notes that the cache holds what cannot be read, so that the next restore fills it
// again from the state topic: once, for what is there can be no better.
func (v *View) damaged(err error) {
	if errors.Is(err, event.ErrMalformed) && v.cache == cacheTrusted {
		v.cache = cacheDamaged
	}
}

// cacheState is what Run's goroutine knows of the cache of the state topic.
type cacheState uint8

const (
	cacheTrusted  cacheState = iota
	cacheDamaged             // to be dropped before the next restore
	cacheRefilled            // was dropped once
)
