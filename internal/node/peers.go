package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router/ownership"
)

const (
	// leaseSilence is how long a region's instances may renew no lease before they count
	// as gone: they do it every few seconds, and an election of the register's leader
	// takes up to 9 s.
	leaseSilence = 30 * time.Second
	// progressSilence is the same for what its seats tell of their progress, every ten
	// minutes at the latest.
	progressSilence = 25 * time.Minute
)

// The states of another region's gateway, as this instance sees it.
const (
	gatewayRunning = "running"
	gatewayStopped = "stopped" // in good order: it has said so
	gatewayGone    = "gone"    // it has been silent for too long
	gatewayUnknown = "unknown"
)

// heard is how long ago something of another region came here.
type heard struct {
	ago time.Duration
	ok  bool // something did
}

// peer is what is known of another region's gateway.
type peer struct {
	fenced bool // its instances renew no leases then
	// fencedFor is how long ago the region was fenced, 0 if that is not known.
	fencedFor time.Duration
	lease     heard // through the register
	stopped   bool  // the newest lease record is an instance's last
	progress  heard // through the link from there
}

// judge gives the state of the gateway and, unless that is unknown, how long it has been
// silent. Leases say more than progress: they are renewed whether the region has
// something to tell or not. A fence ends them, and is no sign of life: a gateway that was
// gone before stays so until something is heard of it.
func (p peer) judge() (state string, silent time.Duration) {
	wasGone := p.lease.ok && p.fencedFor > 0 && p.lease.ago-p.fencedFor > leaseSilence
	switch {
	case p.lease.ok && p.stopped:
		return gatewayStopped, p.lease.ago
	case p.lease.ok && !p.fenced && p.lease.ago <= leaseSilence:
		return gatewayRunning, p.lease.ago
	case p.lease.ok && !p.fenced:
		return gatewayGone, p.lease.ago
	case p.fenced && wasGone && !(p.progress.ok && p.progress.ago < p.fencedFor):
		return gatewayGone, p.lease.ago
	case p.progress.ok && p.progress.ago <= progressSilence:
		return gatewayRunning, p.progress.ago
	case p.progress.ok:
		return gatewayGone, p.progress.ago
	}
	return gatewayUnknown, 0
}

// isRetired tells whether a region is retired, as far as is known.
func (n *Node) isRetired(region string) bool {
	return n.ownership != nil && n.ownership.Tokens().Regions[region].Record.State == ownership.RegionRetired
}

// peerOf asks what is known of another region's gateway.
func (n *Node) peerOf(region string) (p peer) {
	if n.ownership != nil {
		var s ownership.Silence
		s, p.lease.ok = n.ownership.Heard(region)
		p.lease.ago, p.stopped, p.fencedFor = s.Ago, s.Gone, s.Fenced
		r, ok := n.ownership.Tokens().Regions[region]
		p.fenced = ok && r.Record.State != ownership.RegionUp
	}
	if id, ok := n.topology.ID(region); ok {
		if at, ok := n.control.HeardFrom(id); ok {
			p.progress = heard{time.Since(at), true}
		}
	}
	return p
}

// gatewayStatus fills in what status says of the gateways of regions.
func (n *Node) gatewayStatus(st *gateway.Status) {
	for i := range st.Regions {
		r := &st.Regions[i]
		if r.Name == n.cfg.Region {
			r.Gateway = gatewayRunning
			continue
		}
		state, silent := n.peerOf(r.Name).judge()
		if r.Gateway = state; state != gatewayUnknown {
			seconds := float64(silent.Round(100*time.Millisecond).Milliseconds()) / 1000
			r.GatewaySilent = &seconds
		}
	}
}

// peers are the gateways of the other regions, for warnings and metrics.
type peers Node

// Warnings implements warner.
func (n *peers) Warnings(out *warning.List) {
	for _, r := range n.topology.Others(n.cfg.Region) {
		if (*Node)(n).isRetired(r.Name) {
			continue // nothing is expected of it
		}
		switch state, silent := (*Node)(n).peerOf(r.Name).judge(); {
		case state == gatewayGone:
			out.Add(warning.GatewayGone, r.Name, "nothing was heard of the region's gateway for %s; what it had not copied is missing here: start it, or fence the region", silent.Round(time.Second))
		case state == gatewayStopped && silent > leaseSilence:
			out.Add(warning.GatewayGone, r.Name, "the region's gateway was stopped %s ago, in good order; start it, or fence the region", silent.Round(time.Second))
		}
	}
}

var gatewayUp = prometheus.NewDesc("geogate_region_gateway_up",
	"1 while another region's gateway is heard of, 0 when it has stopped or is silent; absent while nothing is known.", []string{"region"}, nil)

// Describe implements prometheus.Collector.
func (n *peers) Describe(out chan<- *prometheus.Desc) { out <- gatewayUp }

// Collect implements prometheus.Collector.
func (n *peers) Collect(out chan<- prometheus.Metric) {
	for _, r := range n.topology.Others(n.cfg.Region) {
		up := 0.0
		switch state, _ := (*Node)(n).peerOf(r.Name).judge(); state {
		case gatewayUnknown:
			continue
		case gatewayRunning:
			up = 1
		}
		out <- prometheus.MustNewConstMetric(gatewayUp, prometheus.GaugeValue, up, r.Name)
	}
}
