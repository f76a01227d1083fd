// Package secret reads secrets from files. A configuration names the file and never
// holds the secret, so that it can be shown.
package secret

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
)

const (
	// least is the shortest secret accepted, in bytes: 128 bits.
	least = 16
	// leastEntropy is the least information in a secret, in bits, as far as how often
	// each byte is in it shows: 16 random bytes have about 62.
	leastEntropy = 56
	// most bounds what is read: a wrong name may be that of a log.
	most = 1 << 16
	// others are the bits of a file's mode that let everybody read or write it. A group
	// may: secrets are given to processes in containers that way.
	others = 0o006
)

// Read reads a secret, without the line end that editors leave. It fails for a file that
// everybody on the machine may read or write, and for a secret that can be guessed. No
// error has any of the secret.
func Read(path string) ([]byte, error) {
	b, err := ReadIssued(path)
	switch {
	case err != nil:
		return nil, err
	case len(b) < least:
		return nil, fmt.Errorf("the secret in %s has %d bytes, at least %d are needed; make one with: openssl rand -hex 32", path, len(b), least)
	case entropy(b) < leastEntropy || periodic(b):
		return nil, fmt.Errorf("the secret in %s can be guessed: it repeats itself; make one with: openssl rand -hex 32", path)
	}
	return b, nil
}

// ReadIssued is Read for a secret that another system has issued, such as a password or a
// private key: it may be short, and is not empty.
func ReadIssued(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of what is read below, whatever the path names by then
	switch {
	case err != nil:
		return nil, err
	case info.Size() > most:
		return nil, fmt.Errorf("%s has %d bytes, a secret has at most %d", path, info.Size(), most)
	case runtime.GOOS != "windows" && info.Mode().Perm()&others != 0:
		return nil, fmt.Errorf("%s can be read or written by everybody on this machine (mode %04o); do: chmod 600 %s", path, info.Mode().Perm(), path)
	}
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > most: // it has grown
		return nil, fmt.Errorf("%s has more than %d bytes, a secret has at most that", path, most)
	}
	if b = bytes.TrimRight(b, "\r\n"); len(b) == 0 {
		return nil, fmt.Errorf("the secret in %s has 0 bytes", path)
	}
	return b, nil
}

// Open opens a file for reading, and refuses what is none. To open a named pipe would wait
// for somebody who writes into it.
func Open(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	return os.Open(path)
}

// entropy is the information in b if its bytes were drawn one by one as often as they
// are in it, in bits.
func entropy(b []byte) (bits float64) {
	var counts [256]int
	for _, c := range b {
		counts[c]++
	}
	for _, n := range counts {
		if n > 0 {
			bits += float64(n) * math.Log2(float64(len(b))/float64(n))
		}
	}
	return bits
}

// periodic tells whether b is a short text, repeated.
func periodic(b []byte) bool {
	for period := 1; period <= min(least/2, len(b)/2); period++ {
		if bytes.Equal(b[period:], b[:len(b)-period]) {
			return true
		}
	}
	return false
}
