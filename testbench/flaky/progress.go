//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// progress is a file that keeps what came of runs, so that all runs of a seed can be done
// in stretches: a line with the seed and the numbers of runs, then one for each run that was
// not cut short. A last line without an end was being written when the process was killed.
type progress struct {
	file *os.File // nil: nothing is kept
	done map[runKey][]result
}

// runKey tells runs apart.
type runKey struct {
	pkg     string
	shuffle uint64
	beside  bool
}

// progressHead is the first line.
type progressHead struct {
	Seed  uint64 `json:"seed"`
	Count int    `json:"count"`
	Few   int    `json:"few"`
	Run   string `json:"run,omitempty"`
}

// progressLine is what came of one run.
type progressLine struct {
	Package string        `json:"package"`
	Shuffle uint64        `json:"shuffle"`
	Beside  bool          `json:"beside"`
	Took    time.Duration `json:"took"`
	Passed  int           `json:"passed"`
	Failed  []string      `json:"failed,omitempty"`
	Log     string        `json:"log,omitempty"`
}

// openProgress reads the file, if there is one, and takes over its seed. Options that make
// other runs than those of the file are refused.
func openProgress(path string, o *options, seedGiven bool) (*progress, error) {
	p := &progress{done: map[runKey][]result{}}
	if path == "" {
		return p, nil
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read progress: %w", err)
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	lines := bufio.NewScanner(bytes.NewReader(whole))
	lines.Buffer(nil, len(whole)+1)
	if lines.Scan() {
		var head progressHead
		if err := json.Unmarshal(lines.Bytes(), &head); err != nil {
			return nil, fmt.Errorf("read progress %s: %w", path, err)
		}
		if head.Count != o.count || head.Few != o.few || head.Run != o.run || seedGiven && head.Seed != o.seed {
			return nil, fmt.Errorf("%s has the progress of -seed %d -count %d -few %d -run %q: give the same, or another file",
				path, head.Seed, head.Count, head.Few, head.Run)
		}
		o.seed = head.Seed
	}
	for lines.Scan() {
		var l progressLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("read progress %s: %w", path, err)
		}
		k := runKey{l.Package, l.Shuffle, l.Beside}
		p.done[k] = append(p.done[k], result{beside: l.Beside, took: l.Took, passed: l.Passed, failed: l.Failed, log: l.Log})
	}
	if p.file, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
		return nil, fmt.Errorf("open progress: %w", err)
	}
	if err := p.file.Truncate(int64(len(whole))); err != nil {
		return nil, fmt.Errorf("open progress: %w", err)
	}
	if _, err := p.file.Seek(int64(len(whole)), 0); err != nil {
		return nil, fmt.Errorf("open progress: %w", err)
	}
	if len(whole) == 0 {
		return p, p.write(progressHead{o.seed, o.count, o.few, o.run})
	}
	return p, nil
}

func (p *progress) write(line any) error {
	if p.file == nil {
		return nil
	}
	b, err := json.Marshal(line)
	if err == nil {
		_, err = p.file.Write(append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("keep progress: %w", err)
	}
	return nil
}

// keep notes what came of a run. The caller calls it for one at a time.
func (p *progress) keep(res result) error {
	if res.cut && len(res.failed) == 0 {
		return nil // it is done again
	}
	return p.write(progressLine{res.pkg.ImportPath, res.shuffle, res.beside, res.took, res.passed, res.failed, res.log})
}

// left takes out of the runs of a phase those that were done, and gives their results.
func (p *progress) left(runs []planned, beside bool) (rest []planned, done []result) {
	for _, pl := range runs {
		k := runKey{pl.pkg.ImportPath, pl.shuffle, beside}
		if list := p.done[k]; len(list) > 0 {
			res := list[0]
			res.planned, p.done[k] = pl, list[1:]
			done = append(done, res)
			continue
		}
		rest = append(rest, pl)
	}
	return rest, done
}
