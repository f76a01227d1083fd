package seat

import (
	"errors"
	"testing"

	"github.com/geogate/geogate/internal/event"
)

// TestClosedRemoteLog: a log that was closed to be opened again, and is not open yet, answers
// what the core asks of it with an error, so that it asks again.
func TestClosedRemoteLog(t *testing.T) {
	const us, eu = 1, 2
	in := &inputs{seat: &Seat{cfg: Config{Region: us}}, remote: map[event.RegionID]*remoteInbox{}}
	ev, err := in.readAgain(t.Context(), ReadAgain{Number: 3, Origin: eu, To: 5})
	if ended, ok := ev.(RereadEnded); err != nil || !ok || ended.Number != 3 || !errors.Is(ended.Err, errNotOpen) {
		t.Errorf("read again: %+v, %v", ev, err)
	}
	if end := in.epochEnd(t.Context(), AskEpochEnd{Origin: eu, Epoch: 4}); end.OK || end.Origin != eu || end.Epoch != 4 {
		t.Errorf("end of an epoch: %+v", end)
	}
}
