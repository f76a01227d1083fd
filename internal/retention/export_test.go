package retention

import (
	"context"
	"time"
)

// Marks is how much a partition remembers.
func Marks(p *Partition) int { return len(p.ends) + len(p.starts) }

// LookOnce is one look of Run.
func (w *Watch) LookOnce(ctx context.Context) error { return w.look(ctx) }

// Every is the time between two looks.
func (w *Watch) Every() time.Duration { return w.cfg.Every }
