//go:build !unix

package embed

// syncDir does nothing where directories cannot be synced.
func syncDir(string) error { return nil }
