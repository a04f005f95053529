package mcpdoor

import "time"

// Sweep ends what is silent since a time.
func (d *Door) Sweep(since time.Time) { d.sweep(since) }
