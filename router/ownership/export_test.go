package ownership

import "time"

// Boottime is the clock of leases.
func Boottime() time.Duration { return boottime() }

// LeaseSubject is where an instance renews its lease.
func LeaseSubject(region, instance string) string { return leaseSubject(region, instance) }

// SaveMark and LoadMark are the high-water mark's file.
func SaveMark(dir string, m Mark) error { return saveMark(dir, m) }

// LoadMark reads it.
func LoadMark(dir string) (Mark, error) { return loadMark(dir) }
