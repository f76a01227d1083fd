// Package event holds the words that every part of geogate shares: the identity
// of a region, a dot, a vector, an epoch, and the envelope that an accepted write
// carries in its record headers. It is the wire format alone: no clock, no
// goroutine, no Kafka client.
//
// The byte layouts are documented in docs/format/envelope.md with golden bytes.
// All variable-length integers are unsigned LEB128 in its shortest form, all
// fixed integers are big endian.
package event
