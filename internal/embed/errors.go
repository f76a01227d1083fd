package embed

import (
	"errors"

	"github.com/geogate/geogate/internal/dirlock"
)

var (
	// ErrInUse is returned when another running engine holds the directory.
	ErrInUse = dirlock.ErrInUse
	// ErrClusterID is returned when the directory holds the data of another
	// cluster than the one asked for.
	ErrClusterID = errors.New("embed: directory belongs to another cluster")
	// ErrCannotWrite is what Run returns when the broker could not write something
	// to its directory.
	ErrCannotWrite = errors.New("embed: embedded kafka cannot write to its directory")
	// ErrDamaged is returned for data that no kill can have left so.
	ErrDamaged = errors.New("embed: data of embedded kafka is damaged")
)
