//go:build !unix

package node

// openFilesLimit is not known.
func openFilesLimit() int { return 0 }
