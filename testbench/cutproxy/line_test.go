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

func TestLine(t *testing.T) {
	l, err := cutproxy.StartLine(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	c := dial()
	if err := said(t, c, 5*time.Second); err != nil {
		t.Fatalf("through the line: %v", err)
	}
	l.Cut()
	if err := said(t, c, 5*time.Second); err == nil {
		t.Error("a connection outlived the cut")
	}
	if c, err := net.Dial("tcp", l.Addr()); err == nil { // it may be reset before that returns
		if err := said(t, c, 5*time.Second); err == nil {
			t.Error("a connection got through a cut line")
		}
		c.Close()
	}
	l.Heal()
	c = dial()
	if err := said(t, c, 5*time.Second); err != nil {
		t.Errorf("after the line was healed: %v", err)
	}
	for _, way := range [][2]bool{{true, false}, {false, true}} {
		l.Swallow(way[0], way[1])
		if err := said(t, c, 100*time.Millisecond); err == nil {
			t.Errorf("a byte came through a deaf line %v", way)
		} else if e, ok := err.(net.Error); !ok || !e.Timeout() {
			t.Errorf("a deaf line ended the connection: %v", err)
		}
		l.Heal()
		if err := said(t, c, 5*time.Second); err == nil {
			t.Error("what was swallowed is missing from a connection that goes on")
		}
		c = dial()
		if err := said(t, c, 5*time.Second); err != nil {
			t.Errorf("after the line was healed: %v", err)
		}
	}
}
