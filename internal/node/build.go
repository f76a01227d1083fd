package node

import (
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// Build is what a build knows of itself.
type Build struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Revision string `json:"revision,omitempty"` // of the source tree, when the build knew it
	Modified bool   `json:"modified,omitempty"` // the tree had changes
}

// ReadBuild gives what this build knows of itself.
func ReadBuild() Build {
	b := Build{Version: Version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Go = info.GoVersion
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// buildInfo shows which version runs where.
func buildInfo() prometheus.Collector {
	b := ReadBuild()
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "geogate_build_info", Help: "1, with the version of geogate, the revision of its sources where known, and the version of Go.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "goversion": b.Go},
	}, func() float64 { return 1 })
}
