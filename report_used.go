package turnstone

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
