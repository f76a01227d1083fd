// Package loopback is the one rule for which addresses no other machine reaches.
// Listeners without authentication accept no others.
package loopback

import "net/netip"

// IsHost reports whether a host, without its port, is certain to stay on this machine.
// Names are not resolved, since what they mean changes: localhost alone is accepted.
func IsHost(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
