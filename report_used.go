package turnstone

import "time"

// Used is what a machine has used. The numbers only grow.
type Used struct {
	// CPU is the time that the host's processors worked for the machine, its emulation included.
	CPU      Millis `json:"cpu_ms"`
	Sent     Bytes  `json:"sent"`     // to the network
	Received Bytes  `json:"received"` // from it
}

// Max returns the greater numbers of both.
func (u Used) Max(o Used) Used {
	return Used{max(u.CPU, o.CPU), max(u.Sent, o.Sent), max(u.Received, o.Received)}
}

// A UsageReport is the output of turn usage.
type UsageReport struct {
	Session   string    `json:"session,omitempty"`
	Since     time.Time `json:"since"`
	Until     time.Time `json:"until"`
	Turns     uint64    `json:"turns"`     // that were started
	Sandboxes uint64    `json:"sandboxes"` // that were created
	Used      Used      `json:"used"`      // as the nodes measured it
	// The time that machines existed, that times their CPUs, and that times their memory in MiB.
	SandboxSeconds int64  `json:"sandbox_seconds"`
	TurnSeconds    int64  `json:"turn_seconds"`
	CPUSeconds     int64  `json:"cpu_seconds"`
	MemorySeconds  uint64 `json:"memory_mib_seconds"`
	// Now, of the whole tenant.
	ActiveSandboxes uint32 `json:"active_sandboxes"`
	ActiveTurns     uint32 `json:"active_turns"`
	Stored          Bytes  `json:"stored"`
}
