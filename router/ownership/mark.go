package ownership

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// markFile is the high-water mark's file in the data directory.
const markFile = "hwm"

// loadMark reads the high-water mark; an instance that has none begins with an
// empty one. A file that cannot be read is an error, never an empty mark: it
// would let the instance believe a register that has forgotten.
func loadMark(dir string) (Mark, error) {
	var m Mark
	b, err := os.ReadFile(filepath.Join(dir, markFile))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("read high-water mark: %w", err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("read high-water mark %s: %w", filepath.Join(dir, markFile), err)
	}
	if m.Version != recordVersion {
		return m, fmt.Errorf("read high-water mark %s: version %d is not known", filepath.Join(dir, markFile), m.Version)
	}
	return m, nil
}

// saveMark replaces the high-water mark; after it returns nil, a crash of the
// machine loses nothing of it.
func saveMark(dir string, m Mark) (err error) {
	path := filepath.Join(dir, markFile)
	f, err := os.CreateTemp(dir, markFile+"-*")
	if err != nil {
		return fmt.Errorf("write high-water mark: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write high-water mark: %w", err), os.Remove(f.Name()))
		}
	}()
	if _, err = f.Write(append(encode(m), '\n')); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
