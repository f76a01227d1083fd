package warning_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/geogate/geogate/internal/warning"
)

func TestSkippedCountsEachRecordOnce(t *testing.T) {
	var s warning.Skipped
	bad := errors.New("key of 2 bytes")
	for range 2 { // a reader that starts over
		s.Add("_geogate.state.t", 3, 7, bad)
		s.Add("_geogate.state.t", 3, 9, errors.New("cut off"))
	}
	if s.Add("_geogate.state.t", 3, 9, bad) || !s.Add("_geogate.control", 0, 0, fmt.Errorf("type 9: %w", warning.ErrUnknown)) {
		t.Error("what is new is told wrong")
	}
	var l warning.List
	s.Warnings(&l)
	want := []string{
		"MALFORMED_RECORD _geogate.state.t/3: 2 records were passed over, the latest at offset 9: cut off",
		"UNKNOWN_RECORD _geogate.control/0: 1 records were passed over, the latest at offset 0: type 9: unknown record",
	}
	got := l.All()
	if len(got) != 2 || got[0].String() != want[0] || got[1].String() != want[1] || got[1].Severity != warning.Notice {
		t.Errorf("warnings %v, want %v", got, want)
	}
	if n := s.Total(); n != 3 {
		t.Errorf("%d in all", n)
	}
}

func TestSkippedIsBounded(t *testing.T) {
	var s warning.Skipped
	for i := range int32(5000) {
		s.Add("t", i, 0, errors.New("x"))
	}
	var l warning.List
	s.Warnings(&l)
	all := l.All()
	if len(all) != 9 || all[8].Subject != "t" || all[8].Detail != "there are such records in 992 more partitions" {
		t.Errorf("%d warnings, the last %s", len(all), all[len(all)-1])
	}
	if n := s.Total(); n != 5000 {
		t.Errorf("%d records are counted", n)
	}
}

func TestNilSkippedRemembersNothing(t *testing.T) {
	var s *warning.Skipped
	var l warning.List
	if !s.Add("t", 0, 0, errors.New("x")) || s.Total() != 0 {
		t.Error("a nil Skipped remembers")
	}
	if s.Warnings(&l); len(l.All()) != 0 {
		t.Error("a nil Skipped warns")
	}
}
