package replicate

import "time"

// A transaction costs both clusters much the same for one record as for thousands, and adds
// three partitions for each that is copied. The busier they are, the longer it takes; so
// transactions that copy little are the further apart the longer they take, and cost the
// same part of the time at most. The first after a while waits for nothing.
const (
	// transactionParts is of how many parts of the time a shard's transactions take one.
	transactionParts = 4
	// transactionLatest is the longest time from the beginning of one transaction to that of
	// the next for all that: so much later may a record be copied.
	transactionLatest = 100 * time.Millisecond
	// littleBytes is how much is little.
	littleBytes = 256 << 10

	// fetchEvery is the shortest time from the beginning of a fetch that has brought
	// little to that of the next.
	fetchEvery = 10 * time.Millisecond
	// littleFetched is how many bytes of a fetch are little.
	littleFetched = 64 << 10
)

// transactionPause is how long the next transaction is to wait for more to copy, a while
// after the last one has begun, which took so long.
func transactionPause(since, took time.Duration) time.Duration {
	return max(min(transactionParts*took, transactionLatest)-since, 0)
}

// fetchPause is how long the next fetch is to wait for more to come, a while after one has
// begun that brought so many bytes.
func fetchPause(since time.Duration, bytes int) time.Duration {
	if bytes >= littleFetched {
		return 0
	}
	return max(fetchEvery-since, 0)
}
