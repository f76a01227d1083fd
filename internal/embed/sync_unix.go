//go:build unix

package embed

import (
	"errors"
	"fmt"
	"os"
)

// syncDir makes created, renamed and removed names in dir lasting.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}
