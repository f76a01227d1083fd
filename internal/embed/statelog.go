package embed

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
)

// This file reads and continues kfake's append logs, pids.log and groups.log. An
// entry is
//
//	length of the rest but CRC, 4 LE | CRC-32C, 4 LE | version 1, 2 LE | JSON
//
// kfake reads up to the first torn entry but goes on writing after it, so that
// all it writes after a torn one is lost to its next start. The tail is
// therefore cut off here.

const (
	entryHead    = 10
	entryVersion = 1
)

// readStateLog returns the entries of a log and cuts a torn tail off.
func readStateLog(path string, log *slog.Logger) ([][]byte, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read state log: %w", err)
	}
	var entries [][]byte
	at := 0
	for len(raw)-at >= entryHead {
		length := int64(binary.LittleEndian.Uint32(raw[at:]))
		if length < 2 || length > int64(len(raw)-at-8) {
			break
		}
		body := raw[at+8 : at+8+int(length)]
		if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(raw[at+4:]) {
			break
		}
		entries = append(entries, body[2:])
		at += 8 + int(length)
	}
	if at == len(raw) {
		return entries, nil
	}
	log.Warn("cut a torn entry off", "log", filepath.Base(path), "bytes", len(raw)-at)
	return entries, truncate(path, int64(at))
}

// frame makes an entry of a state log.
func frame(body []byte) []byte {
	raw := make([]byte, entryHead, entryHead+len(body))
	binary.LittleEndian.PutUint32(raw, uint32(2+len(body)))
	binary.LittleEndian.PutUint16(raw[8:], entryVersion)
	raw = append(raw, body...)
	binary.LittleEndian.PutUint32(raw[4:], crc32.Checksum(raw[8:], castagnoli))
	return raw
}

// pidEntry is an entry of pids.log: "init" gives a producer id its epoch, "endtx"
// says that a transaction is over, "timeout" that the broker ended one.
type pidEntry struct {
	Type    string `json:"type"`
	PID     int64  `json:"pid"`
	Epoch   int16  `json:"epoch"`
	TxID    string `json:"txid,omitempty"`
	Timeout int32  `json:"timeout,omitempty"`
	Commit  *bool  `json:"commit,omitempty"`
}

// producers is what pids.log says.
type producers struct {
	path string
	now  map[int64]pidEntry // the last state of each id, as an init entry
	// ended counts the ends that were written out. It is compared with the
	// markers that were appended since the last clean stop, when kfake writes
	// the log again without ends. (kfake also does so at 10 MiB, without a stop.
	// For a client older than EndTxn 5 a transaction can then look like the one
	// before it; no other client is touched.)
	ended map[txnID]int
	fresh []pidEntry // to append
}

func readProducers(dir string, log *slog.Logger) (*producers, error) {
	p := &producers{path: filepath.Join(dir, "pids.log"), now: map[int64]pidEntry{}, ended: map[txnID]int{}}
	entries, err := readStateLog(p.path, log)
	if err != nil {
		return nil, err
	}
	for _, raw := range entries {
		var e pidEntry
		if err := json.Unmarshal(raw, &e); err != nil {
			return nil, fmt.Errorf("read pids.log: %w", err)
		}
		if e.Type == "init" {
			p.now[e.PID] = e
			continue
		}
		p.ended[txnID{e.PID, e.Epoch}]++
		if now, ok := p.now[e.PID]; ok {
			now.Epoch = e.Epoch
			p.now[e.PID] = now
		}
	}
	return p, nil
}

// fence lets a producer id go on under a higher epoch than t's, and answers a
// repeated EndTxn of t as the broker would have: OK for the same verdict,
// INVALID_TXN_STATE for the other.
func (p *producers) fence(t txnID, commit bool) {
	e, ok := p.now[t.id]
	if !ok {
		return
	}
	e.Type, e.Commit = "init", &commit
	e.Epoch = max(e.Epoch, t.epoch)
	if e.Epoch < math.MaxInt16 { // there the id is exhausted: kfake gives a new one
		e.Epoch++
	}
	p.now[t.id] = e
	p.fresh = append(p.fresh, e)
}

// finish records the end of a transaction whose producer keeps its epoch.
func (p *producers) finish(t txnID, commit bool) {
	p.fresh = append(p.fresh, pidEntry{Type: "endtx", PID: t.id, Epoch: t.epoch, Commit: &commit})
}

// adopt records a producer id that is known from batches only, so that its
// sequences find an owner. kfake forgets such ids over a kill.
func (p *producers) adopt(t txnID) {
	if _, ok := p.now[t.id]; ok {
		return
	}
	e := pidEntry{Type: "init", PID: t.id, Epoch: t.epoch}
	p.now[t.id] = e
	p.fresh = append(p.fresh, e)
}

// save appends the new entries.
func (p *producers) save() error {
	var raw []byte
	for _, e := range p.fresh {
		body, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("write pids.log: %w", err)
		}
		raw = append(raw, frame(body)...)
	}
	p.fresh = nil
	if raw == nil {
		return nil
	}
	return appendFile(p.path, raw)
}
