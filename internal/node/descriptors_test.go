package node

import "testing"

// TestConnectionsLeaveFiles: where the process may open few files, producers and
// consumers get what the instance and its operators leave, and never nothing.
func TestConnectionsLeaveFiles(t *testing.T) {
	c := Defaults() // 2048 and 64 connections, 64 reads
	for files, want := range map[int]int{0: 2048, 1 << 20: 2048, 3008: 2048, 3007: 2047, 1024: 64, 960: fewestConnections, 256: fewestConnections} {
		n, reduced := dataConnections(c, files)
		if n != want || (reduced == "") != (n == c.HTTP.MaxConnections) {
			t.Errorf("with %d files: %d connections (%s), want %d", files, n, reduced, want)
		}
	}
	c.HTTP.MaxConnections = 5
	if n, _ := dataConnections(c, 256); n != 5 {
		t.Errorf("%d connections, 5 are configured", n)
	}
}
