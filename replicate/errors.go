package replicate

import "errors"

var (
	// ErrSameCluster is returned when both ends of a link are one cluster under
	// two names: its records would come back to where they are.
	ErrSameCluster = errors.New("replicate: source and target are the same cluster")

	// ErrSettings is returned when the generation record at the target was made
	// by a link from another source cluster. The link does not run: either its seeds
	// reach the wrong cluster, or the source cluster was replaced.
	ErrSettings = errors.New("replicate: the link's generation record at the target names another source cluster")

	// ErrGeneration is returned by a shard when the link has moved to another
	// generation: another instance runs it now.
	ErrGeneration = errors.New("replicate: the link has moved to another generation")

	// errGenerationLost is returned by a shard when the target has no generation record any
	// more: somebody has deleted it, and nobody else runs the link. The link starts again.
	errGenerationLost = errors.New("replicate: the link's generation record at the target was deleted")

	// ErrTakenOver is returned when another instance has taken a shard over.
	ErrTakenOver = errors.New("replicate: another instance has taken the shard over")

	// ErrConfig is wrapped by every error about a Config.
	ErrConfig = errors.New("replicate: bad configuration")
)
