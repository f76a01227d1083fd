// Package loopback is the one rule for which addresses no other machine reaches.
// Listeners without authentication accept no others.
package loopback

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// ErrNotLoopback is in the error of an address that other machines may reach.
var ErrNotLoopback = errors.New("not a loopback address")

// Check refuses an address, host:port, that is not certain to stay on this machine.
// The error says the reason why it has to, and wraps ErrNotLoopback; an address of
// another form gets one that does not.
func Check(address, reason string) error {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is not host:port", address)
	}
	if !IsHost(host) {
		return fmt.Errorf("%s is %w, and %s", address, ErrNotLoopback, reason)
	}
	return nil
}

// IsHost tells whether a host, without its port, is certain to be this machine. Names are not
// resolved, since what they mean changes: localhost alone is accepted.
func IsHost(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
