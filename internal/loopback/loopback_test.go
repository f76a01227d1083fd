package loopback_test

import (
	"errors"
	"testing"

	"github.com/geogate/geogate/internal/loopback"
)

func TestCheck(t *testing.T) {
	const reason = "there is no authentication"
	for _, address := range []string{"127.0.0.1:80", "127.9.9.9:0", "[::1]:65535", "localhost:80", "[::ffff:127.0.0.1]:80"} {
		if err := loopback.Check(address, reason); err != nil {
			t.Error(err)
		}
	}
	for _, address := range []string{":80", "0.0.0.0:80", "[::]:80", "10.0.0.1:80", "localhost.example:80", "gateway:80", "127.1:80", "a/b:80"} {
		err := loopback.Check(address, reason)
		if want := address + " is not a loopback address, and " + reason; !errors.Is(err, loopback.ErrNotLoopback) || err.Error() != want {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
	for _, address := range []string{"", "localhost", "127.0.0.1", "::1", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:-1"} {
		err := loopback.Check(address, reason)
		if err == nil || errors.Is(err, loopback.ErrNotLoopback) {
			t.Errorf("%q: %v", address, err)
		}
	}
}
