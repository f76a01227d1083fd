package embed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// replaceFile writes a file so that a kill leaves the old or the new content.
func replaceFile(path string, content []byte) error {
	if err := writeBeside(path, content); err != nil {
		return err
	}
	return putInPlace(path)
}

// interim is the suffix of a file that is to replace another. kfake removes such files.
const interim = ".tmp"

// writeBeside writes and syncs what is to replace a file. Nothing of it is left if that
// fails.
func writeBeside(path string, content []byte) error {
	f, err := os.OpenFile(path+interim, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("replace file: %w", err)
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("replace file: %w", err), os.Remove(path+interim))
	}
	return nil
}

// putInPlace replaces a file by what was written beside it.
func putInPlace(path string) error {
	if err := os.Rename(path+interim, path); err != nil {
		return fmt.Errorf("replace file: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// appendFile appends to a file and syncs it.
func appendFile(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("append to file: %w", err)
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("append to file: %w", err)
	}
	return nil
}

// truncate cuts a file and syncs it.
func truncate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("truncate file: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("truncate file: %w", err)
	}
	return nil
}

// remove removes a file that may be missing and reports whether it was there.
func remove(path string) (bool, error) {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove file: %w", err)
	}
	return true, syncDir(filepath.Dir(path))
}
