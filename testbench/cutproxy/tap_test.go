package cutproxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/geogate/geogate/testbench/cutproxy"
)

// echo answers every connection's bytes with the same in capitals.
func echo(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 1<<10)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					c.Write(bytes.ToUpper(buf[:n]))
				}
			}()
		}
	}()
	return ln.Addr().String()
}

func TestTapKeepsBothDirectionsApart(t *testing.T) {
	p, err := cutproxy.StartTCP(echo(t), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dir := t.TempDir()
	p.Tap(dir)
	for n := range 2 {
		conn, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		said := fmt.Sprintf("hello %d", n)
		if _, err := conn.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		heard := make([]byte, len(said))
		if _, err := io.ReadFull(conn, heard); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		for ext, want := range map[string]string{"out": said, "in": string(heard)} {
			got, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%05d.%s", n, ext)))
			if err != nil || string(got) != want {
				t.Errorf("connection %d %s: %q %v, want %q", n, ext, got, err, want)
			}
		}
	}
}

func TestTapThatCannotBeWrittenLetsNothingThrough(t *testing.T) {
	p, err := cutproxy.StartTCP(echo(t), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Tap(filepath.Join(t.TempDir(), "missing"))
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		return // the reset was there first
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	conn.Write([]byte("x"))
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes came through untapped", n)
	}
}
