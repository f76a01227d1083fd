package router

import (
	"context"
	"time"
)

// Register is the register behind the adapter, for histories and measurements.
type Register struct{ r *natsRegister }

// DialRegister connects; reconnected is called after every later connection.
func DialRegister(cfg NATSConfig, reconnected func()) (Register, error) {
	r, err := dialNATS(cfg, reconnected)
	return Register{r}, err
}

func (r Register) Close() { r.r.close() }

func (r Register) Open(ctx context.Context) (Opened, error) { return r.r.open(ctx) }

func (r Register) Write(ctx context.Context, w Write) (Outcome, uint64) { return r.r.write(ctx, w) }

func (r Register) Read(ctx context.Context, subject string) (Seen, bool) {
	return r.r.read(ctx, subject)
}

func (r Register) Watch(ctx context.Context, after uint64, deliver func(Seen)) error {
	return r.r.watch(ctx, after, deliver)
}

func (r Register) Reconnect() { r.r.reconnect() }

// Boottime is the clock of leases.
func Boottime() time.Duration { return boottime() }

// LeaseSubject is where an instance renews its lease.
func LeaseSubject(region, instance string) string { return leaseSubject(region, instance) }

// SaveMark and LoadMark are the high-water mark's file.
func SaveMark(dir string, m Mark) error { return saveMark(dir, m) }

// LoadMark reads it.
func LoadMark(dir string) (Mark, error) { return loadMark(dir) }

// StreamName is the register's stream.
const StreamName = streamName

// Older compares versions of servers.
func Older(version, least string) bool { return older(version, least) }
