package embed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// ErrForgotten is returned for a server of a cluster whose streams are gone. Under its
// old name the others would count the vote of a server that has forgotten what it
// acknowledged.
var ErrForgotten = errors.New("embed: the server's streams are gone")

// serverNames is the file beside a store directory that has the names of all servers
// whose streams were in it. It is not in the directory, so that it is not lost with it.
type serverNames struct {
	Version int      `json:"v"`
	Names   []string `json:"names"` // the last is the present one's
}

func namesFile(storeDir string) string { return filepath.Clean(storeDir) + ".names" }

// checkIdentity refuses a server that had streams in a directory and finds none there,
// and one that finds another server's. When the server runs, remember writes its name
// down: not before there is anything that could be lost.
func checkIdentity(storeDir, name string) (remember func() error, err error) {
	path := namesFile(storeDir)
	known := serverNames{Version: 1}
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read the names of nats servers: %w", err)
	default:
		if err := json.Unmarshal(b, &known); err != nil || known.Version != 1 {
			return nil, fmt.Errorf("read the names of nats servers in %s: version %d, %w", path, known.Version, err)
		}
	}
	streams, err := hasStreams(storeDir)
	if err != nil {
		return nil, err
	}
	last := ""
	if n := len(known.Names); n > 0 {
		last = known.Names[n-1]
	}
	switch {
	case !streams && slices.Contains(known.Names, name):
		return nil, fmt.Errorf("%w: nats server %s had its streams in %s, and there are none any more. Bring the directory back; or, if it is lost, give the server "+
			"another name (nats.embedded.name), start it, and put it in the lost one's place with: geogate register replace %s", ErrForgotten, name, storeDir, name)
	case streams && last != "" && last != name:
		return nil, fmt.Errorf("start embedded nats %s: %s has the streams of server %s. Give the server that name; or move the directory away, and it begins with none", name, storeDir, last)
	case last == name:
		return func() error { return nil }, nil
	}
	known.Names = append(known.Names, name)
	return func() error { return writeNames(path, known) }, nil
}

// hasStreams tells whether a store directory holds anything of JetStream.
func hasStreams(storeDir string) (bool, error) {
	entries, err := os.ReadDir(filepath.Join(storeDir, "jetstream"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for nats streams: %w", err)
	}
	return len(entries) > 0, nil
}

// writeNames replaces the file; after it returns nil, a crash of the machine loses
// nothing of it.
func writeNames(path string, known serverNames) (err error) {
	b, err := json.Marshal(known)
	if err != nil {
		return fmt.Errorf("write the names of nats servers: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write the names of nats servers: %w", err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
