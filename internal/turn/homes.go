package turn

import "turnstone.dev/turnstone/internal/sandbox/userhome"

// HomeInfo describes a persistent home directory.
type HomeInfo = userhome.HomeInfo

// Homes returns the persistent home directories.
func (x *Host) Homes() *userhome.Homes { return userhome.In(x.home) }
