package topics

import "context"

// FollowSettings looks at all settings, as Run does from time to time.
func (c *Catalogue) FollowSettings(ctx context.Context) error { return c.followSettings(ctx) }
