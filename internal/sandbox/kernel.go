package sandbox

import (
	"fmt"

	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/wire"
)

// accept rejects a machine whose kernel differs from the requested one, and records its CPUs. Only
// the agent has run in the guest so far.
func (s *Sandbox) accept(res *wire.SandboxConfigureResult) error {
	if s.source.Kernel != "" { // otherwise the driver brings its own
		if err := driver.CheckRunning(s.source.KernelIs, res.Kernel, res.KernelOpen); err != nil {
			return err
		}
	}
	s.cpus = int(min(max(res.CPUs, 0), int64(s.source.Shape.CPUs)))
	return nil
}

// Fewer reports that the sandbox has fewer CPUs than its shape; empty: it has them all, or their
// number is unknown.
func (s *Sandbox) Fewer() string {
	if asked := s.source.Shape.CPUs; s.cpus > 0 && s.cpus < asked {
		return fmt.Sprintf("%d of %d CPUs: the guest kernel brings up no more", s.cpus, asked)
	}
	return ""
}
