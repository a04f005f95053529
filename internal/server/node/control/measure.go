package control

import (
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// Measure emits the numbers of the node's objects, of its disk and of its machines: see
// telemetry.Measurer.
func (s *Service) Measure(emit func(name string, value float64, labels ...string)) {
	states := map[string]int{"creating": 0, "ready": 0, "running": 0, "paused": 0, "stopped": 0,
		"failed": 0}
	s.board.each(kindSandbox, func(d *v1.WatchNodeResponse) {
		states[stateOf(d.GetSandbox().GetSandbox())]++
	})
	for state, n := range states {
		emit("turnstone_sandboxes", float64(n), state)
	}
	emit("turnstone_snapshots", float64(s.board.count(kindSnapshot)))
	emit("turnstone_sessions", float64(s.board.count(kindSession)))
	emit("turnstone_tenants", float64(len(s.o.Tenants.All())))
	emit("turnstone_node_channels", float64(s.o.Node.Open()))
	emit("turnstone_store_bytes", float64(s.sizes.sum()))
	s.measureDisk(emit)
	s.roomMu.Lock()
	used := s.used()
	s.roomMu.Unlock()
	c := s.o.Capacity
	c.CPUs *= s.o.CPUShares
	emitMachine(emit, "turnstone_node_capacity", c)
	emitMachine(emit, "turnstone_node_used", used)
}

// Busy reports whether the node has a sandbox that did not end, also one that waits for a claim, or
// makes something in the background.
func (s *Service) Busy() (busy bool) {
	s.board.each(kindSandbox, func(d *v1.WatchNodeResponse) {
		state := stateOf(d.GetSandbox().GetSandbox())
		busy = busy || state != "stopped" && state != "failed"
	})
	for _, w := range s.warm.Stats() {
		busy = busy || w.Ready+w.Making+w.Waiting > 0
	}
	s.roomMu.Lock()
	busy = busy || len(s.pending)+len(s.turns) > 0
	s.roomMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.builds {
		busy = busy || b.running
	}
	return busy
}

// stateOf returns the label of a sandbox's state.
func stateOf(sb *v1.Sandbox) string {
	if sb.GetPaused() {
		return "paused"
	}
	switch sb.GetState() {
	case v1.SandboxState_SANDBOX_STATE_CREATING:
		return "creating"
	case v1.SandboxState_SANDBOX_STATE_READY:
		return "ready"
	case v1.SandboxState_SANDBOX_STATE_RUNNING:
		return "running"
	case v1.SandboxState_SANDBOX_STATE_STOPPED:
		return "stopped"
	}
	return "failed"
}

func (s *Service) measureDisk(emit func(name string, value float64, labels ...string)) {
	var fs unix.Statfs_t
	if unix.Statfs(s.o.Tenants.Root(), &fs) != nil {
		return
	}
	size := float64(fs.Bsize)
	emit("turnstone_disk_bytes", float64(fs.Bavail)*size, "free")
	emit("turnstone_disk_bytes", float64(fs.Blocks-fs.Bfree)*size, "used")
}

func emitMachine(emit func(name string, value float64, labels ...string), name string,
	m turnstone.Machine) {
	emit(name, float64(m.CPUs), "cpus")
	emit(name, float64(m.Memory), "memory_bytes")
	emit(name, float64(m.Disk), "disk_bytes")
}

func (b *board) count(kind string) (n int) {
	b.each(kind, func(*v1.WatchNodeResponse) { n++ })
	return n
}

// sum returns the size of all stores in bytes, as they were measured last.
func (z *sizes) sum() (n int64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, stored := range z.stored {
		n += stored
	}
	return n
}
