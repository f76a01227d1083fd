package txn

import "github.com/twmb/franz-go/pkg/kgo"

// Timestamp gives a consumed record's timestamp in milliseconds, as its producer wrote it.
//
// franz-go keeps it in 64 bits of nanoseconds, which overflow for what lies further than
// 292 years from 1970: every timestamp in microseconds does. Modulo 2^64 nothing is lost of
// timestamps below 2^57, which are the microseconds of 4,500 years.
func Timestamp(r *kgo.Record) int64 {
	const (
		bits      = 58                // what ms·10^6 = ms·2^6·5^6 keeps of ms modulo 2^64
		inversion = 76480200929599801 // of 5^6 modulo 2^58
	)
	ns := r.Timestamp.UnixNano()
	if ns&(1<<(64-bits)-1) != 0 {
		return r.Timestamp.UnixMilli() // of a finer clock: it did not come from milliseconds
	}
	ms := uint64(ns>>(64-bits)) * inversion
	return int64(ms<<(64-bits)) >> (64 - bits)
}
