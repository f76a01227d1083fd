package retention

import "context"

// Marks is how much a partition remembers.
func Marks(p *Partition) int { return len(p.ends) + len(p.starts) }

// LookOnce is one look of Run.
func (w *Watch) LookOnce(ctx context.Context) error { return w.look(ctx) }
