// Package ownership decides which region may write what.
//
// [Policy] is the ownership file: it puts topics into domains and says what is owned
// as one unit. [Core] is the protocol by which a region comes to own a unit, and
// ceases to: a state machine without clock, goroutine or socket, which the simulators
// run as it is. [Client] gives it time, the register, the copy of the register in
// the region's Kafka and the region's logs, each by an interface, and answers
// whether the instance may write. [Intervals] makes from the register the tables by
// which all regions judge which records count.
package ownership
