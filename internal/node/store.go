package node

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/geogate/geogate/internal/dirlock"
	"github.com/geogate/geogate/internal/redact"
)

// openStore opens the instance's one Badger under dir/store. It is a cache of
// Kafka: writes are not synced, for what a machine crash takes is read again.
func openStore(dir string, log *slog.Logger) (*badger.DB, error) {
	path := filepath.Join(dir, "store")
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make store directory: %w", err)
	}
	// A process that was killed just now may still have it.
	err := dirlock.Await(path, dirlock.Patience, func(holder string) {
		log.Warn("the store is in use; waiting for the process that has it to end", "dir", path, "holder", holder)
	})
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	o := badger.DefaultOptions(path)
	o.Logger = badgerLog{log}
	o.SyncWrites = false
	o.NumMemtables = 2
	o.MemTableSize = 8 << 20
	o.BlockCacheSize = 0 // values are small and the memory is the process's
	o.IndexCacheSize = 4 << 20
	o.Compression = options.None
	o.DetectConflicts = false // one writer a key
	o.NumVersionsToKeep = 1
	o.ValueLogFileSize = 64 << 20
	o.ValueThreshold = 512 << 10
	o.NumCompactors = 2
	o.CompactL0OnClose = false
	o.MetricsEnabled = false
	db, err := badger.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w (the store is a cache and may be deleted while no instance runs on this directory)", path, err)
	}
	return db, nil
}

// badgerLog sends Badger's log to ours; its information is for debugging.
type badgerLog struct{ log *slog.Logger }

// Errorf implements badger.Logger.
func (b badgerLog) Errorf(f string, a ...any) {
	b.log.Error("store", "msg", redact.Text(fmt.Sprintf(f, a...)))
}

// Warningf implements badger.Logger.
func (b badgerLog) Warningf(f string, a ...any) {
	b.log.Warn("store", "msg", redact.Text(fmt.Sprintf(f, a...)))
}

// Infof implements badger.Logger.
func (b badgerLog) Infof(f string, a ...any) {
	b.log.Debug("store", "msg", redact.Text(fmt.Sprintf(f, a...)))
}

// Debugf implements badger.Logger.
func (b badgerLog) Debugf(f string, a ...any) {}
