package router

import (
	"encoding/binary"
	"strconv"

	"github.com/geogate/geogate/internal/control"
)

// murmur2 is the 32-bit hash of Kafka's default partitioner (MurmurHash2 with
// seed 0x9747b28c), bit for bit as Apache Kafka's Utils.murmur2 computes it.
func murmur2(b []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := binary.LittleEndian.Uint32(b)
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(b[0])) * m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}

// Partition is the partition of a key among n, as Kafka's own clients choose it.
// The key is not null: records without a key have no place of their own. It
// panics when n is not positive.
func Partition(key []byte, n int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % n
}

// Slot is the partition of the positions and runs topics that describes a
// partition of a remote topic. A link's shard is Slot mod its shards.
func Slot(remoteTopic string, partition int32) int32 {
	return hashPair(remoteTopic, partition, control.LinkPartitions)
}

// ConflictsPartition is the partition of the conflict feed that takes the
// conflicts of a partition of a topic, so that they stay in one order.
func ConflictsPartition(topic string, partition int32) int32 {
	return hashPair(topic, partition, control.ConflictPartitions)
}

func hashPair(topic string, partition, n int32) int32 {
	b := make([]byte, 0, control.MaxTopicName+12)
	b = append(b, topic...)
	b = append(b, '-')
	b = strconv.AppendInt(b, int64(partition), 10)
	return Partition(b, n)
}
