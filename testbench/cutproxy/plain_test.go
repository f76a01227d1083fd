package cutproxy_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/cutproxy"
)

// said sends a byte and tells whether it comes back within a time.
func said(t *testing.T, c net.Conn, within time.Duration) error {
	t.Helper()
	c.SetDeadline(time.Now().Add(within))
	if _, err := c.Write([]byte{7}); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

func TestPlainProxyCutsSwallowsAndHeals(t *testing.T) {
	p, err := cutproxy.StartTCP(echo(t), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	heal := func() {
		t.Helper()
		if err := p.Heal(); err != nil {
			t.Fatal(err)
		}
	}
	c := dial()
	if err := said(t, c, 5*time.Second); err != nil {
		t.Fatalf("through the proxy: %v", err)
	}
	p.Cut()
	if err := said(t, c, 5*time.Second); err == nil {
		t.Error("a connection outlived the cut")
	}
	if c, err := net.Dial("tcp", p.Addr()); err == nil { // it may be reset before that returns
		if err := said(t, c, 5*time.Second); err == nil {
			t.Error("a connection got through a cut proxy")
		}
		c.Close()
	}
	heal()
	c = dial()
	if err := said(t, c, 5*time.Second); err != nil {
		t.Errorf("after the heal: %v", err)
	}
	for _, way := range [][2]bool{{true, false}, {false, true}} {
		p.Swallow(way[0], way[1])
		if err := said(t, c, 100*time.Millisecond); err == nil {
			t.Errorf("a byte came through a deaf proxy %v", way)
		} else if e, ok := err.(net.Error); !ok || !e.Timeout() {
			t.Errorf("a deaf proxy ended the connection: %v", err)
		}
		heal()
		if err := said(t, c, 5*time.Second); err == nil {
			t.Error("what was swallowed is missing from a connection that goes on")
		}
		c = dial()
		if err := said(t, c, 5*time.Second); err != nil {
			t.Errorf("after the heal: %v", err)
		}
	}
}
