package ownership

import (
	"errors"
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// ErrUnproven says that this region may own the unit but cannot prove it now:
// its lease has run out, or its claim is under way. Asking again may help.
var ErrUnproven = errors.New("ownership: ownership is not proven at the moment")

// NotOwnerError says that this region may not write the unit.
type NotOwnerError struct {
	Unit   string
	Owner  string // region, "" for nobody
	Epoch  event.Epoch
	State  UnitState
	By     string // region whose gateway fenced it
	Reason string
}

// Error implements error; it is what the client is told.
func (e *NotOwnerError) Error() string {
	switch {
	case e.Owner != "" && e.Epoch == 0:
		return fmt.Sprintf("%s is %s's to claim", e.Unit, e.Owner)
	case e.Owner != "":
		return fmt.Sprintf("%s is owned by %s in epoch %d", e.Unit, e.Owner, e.Epoch)
	}
	why := e.By
	if e.Reason != "" {
		why += ": " + e.Reason
	}
	return fmt.Sprintf("%s is fenced since epoch %d (%s)", e.Unit, e.Epoch, why)
}

// Grant is the permission to write a unit that the instance had at one moment.
// It is worth nothing by itself: its holder asks again before it answers.
type Grant struct {
	Epoch event.Epoch
	// Live is the revision of the region's record that the lease depends on. The
	// same epoch under another revision is another grant.
	Live uint64
}
