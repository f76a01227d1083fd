package router

// Murmur2 is the hash that Partition rests on.
func Murmur2(b []byte) uint32 { return murmur2(b) }
