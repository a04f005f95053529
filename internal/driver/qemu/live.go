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

// live contains the parts of a machine that a snapshot of the running machine needs.
type live struct {
	id     identity
	ram    *os.File // the file that its memory maps
	shared bool     // a shared mapping: ram contains the guest's writes
	layers []string // paths of its layers' images
	home   bool     // it has a home disk, which has one writer

	mu sync.Mutex // one snapshot at a time
}

// keep returns a live with a new descriptor of f's memory.
func (s *Substrate) keep(f files, m substrate.Machine, shared bool) (*live, error) {
	ram, err := kit.Dup(f.ram)
	if err != nil {
		return nil, err
	}
	return &live{id: s.identity(m), ram: ram, shared: shared, layers: m.Layers, home: m.Home != ""},
		nil
}

// close releases the memory. No snapshot is in progress, because a snapshot holds mu and ends with
// the machine.
func (l *live) close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.ram.Close()
}

// bareState tells QEMU that a device state has no migration header and trailer: no machine name
// before it, and no description of the format after it.
var bareState = []string{"-global", "migration.send-configuration=off",
	"-machine", "suppress-vmdesc=on"}

// running reports whether the guest's CPUs run.
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

// stateFDSet is the descriptor set whose name QEMU uses to open the file of the device state; the
// sets of the command line have lower numbers.
const stateFDSet = 1000

// devices writes the state of the machine's devices and CPUs, which must be paused, to a new file
// at path. A migration would also write the memory, because a clone's memory is not shared and so
// not left out; the command of Xen's tools saves everything but the memory, with any accelerator
// (QEMU, migration/savevm.c).
func (m *machine) devices(ctx context.Context, path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	set := map[string]any{"fdset-id": stateFDSet}
	_, err = m.mon.do(ctx, command{Execute: "add-fd", Arguments: set, file: f},
		command{Execute: "xen-save-devices-state",
			Arguments: map[string]any{"filename": fmt.Sprintf("/dev/fdset/%d", stateFDSet),
				"live": false}})
	_, gone := m.mon.do(context.WithoutCancel(ctx), command{Execute: "remove-fd", Arguments: set})
	if err == nil {
		err = gone
	}
	if err != nil {
		return nil, fmt.Errorf("saving the device state: %w", err)
	}
	return snapshots.ReadAtMost(path, snapshots.MaxState)
}
