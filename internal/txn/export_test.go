package txn

// SetSequence makes the next batch of a partition begin at a sequence number.
func (p *Producer) SetSequence(topic string, partition, n int32) {
	p.sequences[TopicPartition{topic, partition}] = n
}
