//go:build unix

package main

import (
	"fmt"
	"slices"
)

// leakCheck searches the world for every canary. The processes have ended.
func (s *fencing) leakCheck(metrics ...[]byte) error {
	l := s.leak
	all := append(slices.Clone(l.all), planted{canary: l.reason})
	reason := len(all) - 1
	canaries := make([]canary, len(all))
	for i, p := range all {
		canaries[i] = p.canary
	}
	t, err := l.survey(newScanner(canaries), metrics...)
	if err != nil {
		return err
	}
	seen := 0
	must := func(place *search, i int) {
		seen++
		if _, ok := place.found[i]; !ok {
			s.note("blind: %s is not found in %s", all[i].slot, place.name)
		}
	}
	for i, p := range all {
		if p.inTap {
			must(t.euTap, i)
		}
		if p.inFiles {
			must(t.euFiles, i)
		}
		if p.leaves {
			for _, place := range []*search{t.link, t.usFiles, t.usHTTP} {
				must(place, i)
			}
		}
	}
	for _, place := range []*search{t.register, t.usFiles, t.witness} {
		must(place, reason)
	}
	s.report("the scan finds what it must: in eu what stays, outside what may leave", "%d canaries, %d sightings", len(all), seen)

	kept, bytes, files := 0, int64(0), 0
	for _, place := range t.outside() {
		bytes, files = bytes+place.bytes, files+place.files
		if place.bytes == 0 {
			s.note("nothing was written down of %s", place.name)
		}
	}
	for i, p := range all {
		if p.leaves || i == reason {
			continue
		}
		kept++
		for _, place := range t.outside() {
			if at, ok := place.found[i]; ok {
				s.note("%s is outside eu: in %s, %s, %s", p.slot, place.name, at.where, at.form)
			}
		}
	}
	s.report("nothing that must stay in eu is in a file or socket outside it", "%d canaries in %d forms, %d files of %s", kept, len(all[0].needles(0)), files, size(bytes))

	if at, ok := t.routes.found[reason]; ok {
		s.note("%s is readable in %s, %s, %s", all[reason].slot, t.routes.name, at.where, at.form)
	}
	for i, p := range all[:reason] {
		for _, place := range []*search{t.logs, t.metrics, t.register, t.witness} {
			if at, ok := place.found[i]; ok {
				s.note("%s is in %s, %s, %s", p.slot, place.name, at.where, at.form)
			}
		}
	}
	s.report("no log, no metric and nothing in the register holds a key, header or value", "%d canaries, %s of logs, %s of metrics", reason, size(t.logs.bytes), size(t.metrics.bytes))
	return nil
}

func size(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
