package replicate

import "time"

// A transaction costs both clusters much the same for one record as for thousands, and adds
// three partitions to each one that is copied. So the longer transactions take, because the
// clusters are busy, the longer the intervals between small ones: up to
// transactionIntervalMost, transactions take a quarter of the time at most. The first after a
// while waits for nothing.
const (
	// transactionIntervalFactor is how many times as long as a transaction the interval to
	// the next one is.
	transactionIntervalFactor = 4
	// transactionIntervalMost is the longest interval from the beginning of one transaction to
	// that of the next: a record may be copied so much later.
	transactionIntervalMost = 100 * time.Millisecond
	// smallTransaction is how many fetched bytes a transaction may have to count as small.
	smallTransaction = 256 << 10

	// fetchEvery is the shortest time from the beginning of a fetch that has brought
	// little to that of the next.
	fetchEvery = 10 * time.Millisecond
	// smallFetch is how many bytes a fetch may have to count as small.
	smallFetch = 64 << 10

	// lagEvery is the time from one list of where the source's logs end to the next. The
	// answer costs gateway and broker some microseconds a partition, so it is lagPartition
	// for each where that is longer, up to lagMost, which is well below lagStale.
	lagEvery     = time.Second
	lagPartition = 3 * time.Millisecond
	lagMost      = 4 * time.Second
)

// transactionPause is how long the next transaction is to wait for more to copy: since is
// the time since the last one began, took how long that one took.
func transactionPause(since, took time.Duration) time.Duration {
	return max(min(transactionIntervalFactor*took, transactionIntervalMost)-since, 0)
}

// fetchPause is how long the next fetch is to wait for more to come: since is the time since
// the last one began, bytes what that one brought.
func fetchPause(since time.Duration, bytes int) time.Duration {
	if bytes >= smallFetch {
		return 0
	}
	return max(fetchEvery-since, 0)
}

// lagPause is how long to wait before where so many logs end is listed again.
func lagPause(partitions int) time.Duration {
	return max(min(time.Duration(partitions)*lagPartition, lagMost), lagEvery)
}
