//go:build !unix

package node

// openFilesLimit is not known.
func openFilesLimit() int { return 0 }

// freeBytes is not known.
func freeBytes(string) (n int64, ok bool) { return 0, false }
