package cutproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
)

// Tap has every connection that is opened from now on written down in dir, which
// must exist, as it comes from either side: <number>.out is what the client sent,
// <number>.in what came back. One file for each direction, so that what a search
// looks for is never torn by what went the other way.
func (p *Proxy) Tap(dir string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tapDir = dir
}

// tap gives the readers to forward from: those of the connections, or ones that
// also write to files, which done closes.
func (p *Proxy) tap(client, upstream net.Conn) (there, back io.Reader, done func(), err error) {
	p.mu.Lock()
	dir, number := p.tapDir, p.tapped
	if dir != "" {
		p.tapped++
	}
	p.mu.Unlock()
	if dir == "" {
		return client, upstream, func() {}, nil
	}
	name := filepath.Join(dir, fmt.Sprintf("%05d", number))
	out, err := os.Create(name + ".out")
	in, err2 := os.Create(name + ".in")
	done = func() {
		out.Close()
		in.Close()
	}
	if err := errors.Join(err, err2); err != nil {
		done()
		return nil, nil, nil, fmt.Errorf("open tap: %w", err)
	}
	return io.TeeReader(client, out), io.TeeReader(upstream, in), done, nil
}
