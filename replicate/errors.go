package replicate

import "errors"

var (
	// ErrSameCluster is returned when both ends of a link are one cluster under
	// two names: its records would come back to where they are.
	ErrSameCluster = errors.New("replicate: source and target are the same cluster")

	// ErrSettings is returned when the generation record at the target was made
	// by a link from another cluster. Such a link does not run.
	ErrSettings = errors.New("replicate: the link's record at the target is another source's")

	// ErrGeneration is returned by a shard when the link has moved to another
	// generation: another instance runs it now.
	ErrGeneration = errors.New("replicate: the link has moved to another generation")

	// ErrTakenOver is returned when another instance has taken a shard over.
	ErrTakenOver = errors.New("replicate: another instance has taken the shard over")

	// ErrConfig is wrapped by every complaint about a Config.
	ErrConfig = errors.New("replicate: bad configuration")
)
