package loopback_test

import (
	"testing"

	"github.com/geogate/geogate/internal/loopback"
)

func TestIsHost(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "::1": true, "localhost": true, "::ffff:127.0.0.1": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "localhost.example": false, "gateway": false, "127.1": false,
	} {
		if got := loopback.IsHost(host); got != want {
			t.Errorf("%q: %t", host, got)
		}
	}
}
