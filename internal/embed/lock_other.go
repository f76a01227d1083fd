//go:build !unix

package embed

// LockDir takes no lock where the system has no advisory file locks; there the
// listen port is what keeps a second engine off the same data.
func LockDir(string) (release func() error, err error) {
	return func() error { return nil }, nil
}

// syncDir does nothing where directories cannot be synced.
func syncDir(string) error { return nil }
