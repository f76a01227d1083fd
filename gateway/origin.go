package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/geogate/geogate/internal/loopback"
)

// origin keeps pages in a browser on this machine, or in its network, from using
// a listener as if they were a client of it. A page can have the browser send
// requests anywhere. Two rules stop it:
//
//   - The Host header must name the listener. A page whose own name was made to
//     point here (DNS rebinding) is the same origin for the browser, but the
//     browser still says that name.
//   - What changes state must not come from another origin, by the Sec-Fetch-Site
//     and Origin headers, which a page cannot set.
//
// Clients that are no browser send neither Origin nor Sec-Fetch-Site, and are not
// affected by the second rule.
type origin struct {
	hosts   map[string]bool // beside the names of this machine
	setting string          // where more names are configured
	cross   *http.CrossOriginProtection
}

// newOrigin makes the rules of a listener. setting names the configuration's list
// of hosts.
func newOrigin(l ListenerConfig, setting string) *origin {
	o := &origin{hosts: make(map[string]bool), setting: setting, cross: http.NewCrossOriginProtection()}
	o.hosts[hostOf(l.Listen)] = true
	for _, h := range l.AllowedHosts {
		o.hosts[hostOf(h)] = true
	}
	return o
}

// check refuses a request that a foreign page may have caused.
func (o *origin) check(r *http.Request) *problem {
	// A client of HTTP/1.0 may say no host; every browser does.
	if host := hostOf(r.Host); r.Host != "" && !loopback.IsHost(host) && !o.hosts[host] {
		return newProblem(codeHostNotAllowed, "the Host header does not name this listener; send the request to it by an address of this machine, or have the operator add the name to %s", o.setting)
	}
	if o.cross.Check(r) != nil { // it lets GET, HEAD and OPTIONS pass, which change nothing here
		return newProblem(codeForeignOrigin, "a browser sent the request for a page of another origin (headers Sec-Fetch-Site, Origin); pages of other origins may not change anything")
	}
	return nil
}

// forbidSniffing has browsers take an answer for what it says it is, and keeps
// pages of other origins from embedding it.
func forbidSniffing(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// hostOf is the host of a host with or without a port, in the form in which hosts
// are compared.
func hostOf(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// IsHost tells whether ListenerConfig.AllowedHosts may have a name: a host name or
// an IP address, without scheme, port or brackets.
func IsHost(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	odd := func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune("-._", c)
	}
	const most = 253 // of DNS
	return name != "" && len(name) <= most && !strings.ContainsFunc(name, odd) && strings.Trim(name, "-.") == name
}
