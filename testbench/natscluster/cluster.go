package natscluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/testbench/apache"
	"github.com/geogate/geogate/testbench/cutproxy"
)

// Size is how many servers a cluster has.
const Size = 3

// nowhere is advertised instead of a server's address: servers tell each other
// where they are, and would connect around the lines.
const nowhere = "127.0.0.1:1"

// Cluster is three servers. Its methods may be called from any goroutine, those
// that stop and start a server only from one at a time.
type Cluster struct {
	at    [Size]string
	dirs  [Size]string
	lines [Size][Size]*cutproxy.Proxy // from, to; nil in the diagonal

	mu      sync.Mutex
	servers [Size]*embed.NATSServer // nil while stopped
}

// Start starts a cluster below a directory.
func Start(dir string) (*Cluster, error) {
	c := &Cluster{}
	for i := range Size {
		port, err := apache.FreePort()
		if err != nil {
			return nil, err
		}
		c.at[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	var err error
	for i := range Size {
		c.dirs[i] = filepath.Join(dir, fmt.Sprintf("ctl-%d", i))
		for j := range Size {
			if i == j {
				continue
			}
			if c.lines[i][j], err = cutproxy.StartTCP(c.at[j], "127.0.0.1:0"); err != nil {
				c.Close()
				return nil, err
			}
		}
	}
	for i := range Size {
		if err := c.Restart(i); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// Secret is what the servers share.
func Secret() []byte { return []byte("natscluster 51c0e7a94bd2") }

// Config is how server i is started.
func (c *Cluster) Config(i int) embed.NATS {
	var routes []string
	for j := range Size {
		if j != i {
			routes = append(routes, "nats-route://"+c.lines[i][j].Addr())
		}
	}
	return embed.NATS{Name: fmt.Sprintf("ctl-%d", i), StoreDir: c.dirs[i], ClusterListen: c.at[i], Routes: routes, Advertise: nowhere, Secret: Secret()}
}

// Server is server i, nil while it is stopped.
func (c *Cluster) Server(i int) *embed.NATSServer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[i]
}

// Leader is the server that leads a stream and is not cut off, -1 if none does.
func (c *Cluster) Leader(stream string) int {
	for i := range Size {
		if s := c.Server(i); s != nil && s.Leads(stream) && s.Ready() == nil {
			return i
		}
	}
	return -1
}

// Isolate cuts every line of server i.
func (c *Cluster) Isolate(i int) {
	for _, l := range c.of(i) {
		l.Cut()
	}
}

// Deafen lets server i send and hear nothing: answers to what it asked are lost
// as well.
func (c *Cluster) Deafen(i int) {
	for j := range Size {
		if j != i {
			c.lines[i][j].Swallow(false, true)
			c.lines[j][i].Swallow(true, false)
		}
	}
}

// Rejoin heals every line of server i.
func (c *Cluster) Rejoin(i int) {
	for _, l := range c.of(i) {
		_ = l.Heal() // errors once it is closed, with the cluster
	}
}

func (c *Cluster) of(i int) (out []*cutproxy.Proxy) {
	for j := range Size {
		if j != i {
			out = append(out, c.lines[i][j], c.lines[j][i])
		}
	}
	return out
}

// Stop ends server i; with warning it hands over what it leads first. Without,
// its lines are cut before, and for the others it is as if it had been killed.
func (c *Cluster) Stop(i int, warning bool) error {
	s := c.Server(i)
	if s == nil {
		return nil
	}
	if !warning {
		c.Isolate(i)
	}
	c.mu.Lock()
	c.servers[i] = nil
	c.mu.Unlock()
	return s.Close()
}

// Restart starts server i on what it has kept.
func (c *Cluster) Restart(i int) error {
	c.Rejoin(i)
	s, err := embed.StartNATS(c.Config(i))
	if err != nil {
		return fmt.Errorf("start server %d: %w", i, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers[i] = s
	return nil
}

// Keep copies what a stopped server i has on disk; Bring puts a copy in place of
// what it has: a disk that was rolled back.
func (c *Cluster) Keep(i int, to string) error { return os.CopyFS(to, os.DirFS(c.dirs[i])) }

// Bring puts a copy in place of what server i has.
func (c *Cluster) Bring(i int, from string) error {
	if err := os.RemoveAll(c.dirs[i]); err != nil {
		return err
	}
	return os.CopyFS(c.dirs[i], os.DirFS(from))
}

// Close ends all servers and lines.
func (c *Cluster) Close() {
	for i := range Size {
		c.Stop(i, false)
	}
	for i := range Size {
		for j := range Size {
			if l := c.lines[i][j]; l != nil {
				l.Close()
			}
		}
	}
}

var errDown = errors.New("natscluster: the server is down")

// Dialer connects a client to servers of the cluster in process, each time to the
// next of those it was given that run.
type Dialer struct {
	*Door
	c     *Cluster
	among []int

	turn sync.Mutex
	last int
}

// Dialer makes a dialler for some servers, the first of them first.
func (c *Cluster) Dialer(among ...int) *Dialer {
	d := &Dialer{c: c, among: among, last: -1}
	d.Door = NewDoor(d.next)
	return d
}

// At is the server of the last connection.
func (d *Dialer) At() int {
	d.turn.Lock()
	defer d.turn.Unlock()
	if d.last < 0 {
		return -1
	}
	return d.among[d.last%len(d.among)]
}

func (d *Dialer) next() (net.Conn, error) {
	d.turn.Lock()
	defer d.turn.Unlock()
	for range d.among {
		d.last++
		s := d.c.Server(d.among[d.last%len(d.among)])
		if s == nil {
			continue
		}
		if conn, err := s.Dialer().InProcessConn(); err == nil {
			return conn, nil
		}
	}
	return nil, errDown
}
