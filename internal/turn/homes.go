package turn

import "turnstone.dev/turnstone/internal/sandbox/userhome"

// Homes returns the persistent home directories.
func (x *Runner) Homes() *userhome.Homes { return userhome.In(x.home) }
