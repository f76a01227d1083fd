package kept

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// sizeRecord is the PAX record that holds a file's size. Zeros at a file's end are
// left out of the archive: Badger allocates its logs in advance, 128 MiB each.
const sizeRecord = "GEOGATE.size"

// maxFile bounds what one file of an archive unfolds to.
const maxFile = 1 << 30

// Pack writes the files below dir into one archive, the same bytes for the same
// files. Empty directories are kept; times, modes and owners are not.
func Pack(dir, archive string) (err error) {
	f, err := os.Create(archive)
	if err != nil {
		return fmt.Errorf("create archive: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return fmt.Errorf("create archive: %w", err)
	}
	t := tar.NewWriter(z)
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		return packOne(t, dir, path, d)
	}); err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	return errors.Join(t.Close(), z.Close())
}

func packOne(t *tar.Writer, dir, path string, d fs.DirEntry) error {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	name = filepath.ToSlash(name)
	if d.IsDir() {
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700, ModTime: time.Unix(0, 0)})
	}
	if !d.Type().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	size := len(content)
	content = bytes.TrimRight(content, "\x00")
	if err := t.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(content)), ModTime: time.Unix(0, 0),
		PAXRecords: map[string]string{sizeRecord: strconv.Itoa(size)}, Format: tar.FormatPAX,
	}); err != nil {
		return err
	}
	_, err = t.Write(content)
	return err
}

// Unpack writes an archive's files below dir, with the zeros at their ends as holes.
func Unpack(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open archive: %w", err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("open archive %s: %w", archive, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("unpack %s: %w", archive, err)
	}
	t := tar.NewReader(z)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = unpackOne(t, h, dir)
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", archive, err)
		}
	}
}

func unpackOne(t *tar.Reader, h *tar.Header, dir string) (err error) {
	if !filepath.IsLocal(h.Name) {
		return fmt.Errorf("%s leads out of the directory", h.Name)
	}
	path := filepath.Join(dir, filepath.FromSlash(h.Name))
	if h.Typeflag == tar.TypeDir {
		return os.MkdirAll(path, 0o700)
	}
	size, err := strconv.ParseInt(h.PAXRecords[sizeRecord], 10, 64)
	if err != nil || size < h.Size || size > maxFile {
		return fmt.Errorf("%s has size %q", h.Name, h.PAXRecords[sizeRecord])
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.CopyN(f, t, h.Size); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Truncate(size)
}
