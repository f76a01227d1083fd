package control

import "maps"

// CompactedSettings are the settings of internal topics that are compacted, beside the
// policy itself. A start reads them whole, and a log's active segment is never compacted:
// with the defaults of a cluster (segments of 1 GiB or a week, half of the log dirty) it
// would read weeks of progress for the few records that count.
//
// brief is for topics that get a record in every transaction: the marker of each is kept
// for as long as tombstones are. Nobody needs tombstones of these topics for longer than
// it takes to read them once.
func CompactedSettings(brief bool) map[string]string {
	out := map[string]string{
		"segment.bytes":             "1048576", // the least that Kafka 4 takes
		"segment.ms":                "600000",
		"min.cleanable.dirty.ratio": "0.1",
		"max.compaction.lag.ms":     "3600000",
	}
	if brief {
		maps.Copy(out, map[string]string{"delete.retention.ms": "600000"})
	}
	return out
}
