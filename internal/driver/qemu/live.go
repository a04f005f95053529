package qemu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/substrate"
)

// live is what a machine keeps of what it was made of, so that it can be written
// down while it runs.
type live struct {
	id     identity
	ram    *os.File // what its memory is a mapping of
	shared bool     // the mapping is shared: ram has what the guest writes
	layers []string // paths of its layers' images
	home   bool     // it has a home disk, which has one writer

	mu sync.Mutex // one snapshot at a time
}

// keep returns a live with a descriptor of its own of f's memory.
func (s *Substrate) keep(f files, m substrate.Machine, shared bool) (*live, error) {
	ram, err := kit.Dup(f.ram)
	if err != nil {
		return nil, err
	}
	return &live{id: s.identity(m), ram: ram, shared: shared, layers: m.Layers, home: m.Home != ""}, nil
}

// close lets go of the memory. No snapshot is being taken any more, since it holds
// mu and ends with the machine.
func (l *live) close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.ram.Close()
}

// bareState tells QEMU that a device state is without what a migration puts around
// it: the machine's name in front, the description of the format behind.
var bareState = []string{"-global", "migration.send-configuration=off", "-machine", "suppress-vmdesc=on"}

// running asks whether the guest's CPUs run.
func (m *machine) running(ctx context.Context) (bool, error) {
	v, err := m.mon.do(ctx, command{Execute: "query-status"})
	if err != nil {
		return false, err
	}
	var st struct {
		Running bool `json:"running"`
	}
	err = json.Unmarshal(v, &st)
	return st.Running, err
}

// stateFDSet is the descriptor set by whose name QEMU opens the file of the device
// state; those of the command line are below.
const stateFDSet = 1000

// devices writes the state of the machine's devices and CPUs, which must stand
// still, to a new file at path. A migration would also write the memory, which is not shared in a clone
// and so is not left out; the command that Xen's tools use for the same purpose
// saves all but the memory, whatever runs the guest (QEMU, migration/savevm.c).
func (m *machine) devices(ctx context.Context, path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	set := map[string]any{"fdset-id": stateFDSet}
	_, err = m.mon.do(ctx, command{Execute: "add-fd", Arguments: set, file: f},
		command{Execute: "xen-save-devices-state", Arguments: map[string]any{"filename": fmt.Sprintf("/dev/fdset/%d", stateFDSet), "live": false}})
	_, gone := m.mon.do(context.WithoutCancel(ctx), command{Execute: "remove-fd", Arguments: set})
	if err == nil {
		err = gone
	}
	if err != nil {
		return nil, fmt.Errorf("saving the device state: %w", err)
	}
	return snapshots.ReadAtMost(path, snapshots.MaxState)
}
