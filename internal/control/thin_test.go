package control_test

import (
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/hlc"
)

// TestHistoryReachesBack: of what a region tells twice a second for a day, so much is kept
// that a reader finds something to use however far it lags: no more than a few times as old
// as what it has come to.
func TestHistoryReachesBack(t *testing.T) {
	var h []control.Progress
	const day = 24 * 60 * 60 * 1000
	for at := int64(1); at < day; at += 500 {
		h = control.Thin(append(h, control.Progress{Closed: hlc.FromMillis(at)}))
	}
	newest := h[len(h)-1].Closed.Millis()
	for i := 1; i < len(h); i++ {
		if h[i].Closed <= h[i-1].Closed {
			t.Fatalf("%v after %v", h[i].Closed, h[i-1].Closed)
		}
		if age, next := newest-h[i-1].Closed.Millis(), newest-h[i].Closed.Millis(); next > 3000 && age > 8*next {
			t.Errorf("nothing is kept between %d ms and %d ms ago", age, next)
		}
	}
	if len(h) > 16 || newest-h[len(h)-8].Closed.Millis() != 3500 || h[0].Closed.Millis() > day/100 {
		t.Errorf("%d are kept, the first of %d", len(h), h[0].Closed.Millis())
	}
}
