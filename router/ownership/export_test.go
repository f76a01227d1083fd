package ownership

import "time"

// Boottime is the clock of leases.
func Boottime() time.Duration { return boottime() }

// LeaseSubject is where an instance renews its lease.
func LeaseSubject(region, instance string) string { return leaseSubject(region, instance) }

// Newest is what the instance tells others of a subject.
func (t *Tokens) Newest(subject string) (seq uint64, data []byte) { return t.newest(subject) }

// SaveMark and LoadMark are the high-water mark's file.
func SaveMark(dir string, m Mark) error { return saveMark(dir, m) }

// LoadMark reads it.
func LoadMark(dir string) (Mark, error) { return loadMark(dir) }
