package firecracker

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// benchmark is this test binary as a separate program, which the command bench measures beside
// `turn run`: Firecracker on the same files, without a jail, and without checks of the files.
func benchmark(mode string) error {
	h, err := statedir.Open(os.Getenv("TURN_HOME"))
	if err != nil {
		return err
	}
	ctx := context.Background()
	snap, err := newest(h)
	if err != nil {
		return err
	}
	s := &Substrate{home: h, progress: func(string) {}}
	s.holes = s.keepsHoles
	if s.binary, err = find(os.Getenv("TURN_FIRECRACKER"), "firecracker", ""); err != nil {
		return err
	}
	m := substrate.Machine{Root: os.Getenv("TURNSTONE_BENCH_ROOT"), Shape: turnstone.DefaultShape()}
	load := func(ctx context.Context, snap snapshot) (substrate.Sandbox, int, error) {
		vm, err := s.load(ctx, m, snap)
		if err != nil {
			return nil, 0, err
		}
		return vm, vm.PID(), nil
	}
	return substratetest.Bare{
		Network: wire.SandboxNetwork{Address: network.GuestAddress, Gateway: network.Gateway,
			DNS: []string{network.DNS}},
		Start: func(ctx context.Context) (substrate.Sandbox, int,
			error) {
			return load(ctx, snap)
		},
		Write: func(ctx context.Context, vm substrate.Sandbox, dir string) error {
			return vm.(*machine).writeLive(ctx, dir)
		},
		Load: func(ctx context.Context, dir string) (substrate.Sandbox, int, error) {
			return load(ctx, snapshotIn(dir))
		},
	}.Run(ctx, mode)
}

// newest returns the latest snapshot of the template whose root image has the digest
// $TURNSTONE_BENCH_ROOT_DIGEST, with the default shape.
func newest(h *statedir.Dir) (snapshot, error) {
	var last manifest
	found := ""
	all, _ := filepath.Glob(h.Path("snapshots", "*", manifestFile))
	for _, path := range all {
		var m manifest
		b, err := os.ReadFile(path)
		if err == nil && json.Unmarshal(b, &m) == nil && m.Identity.Substrate == "firecracker" &&
			m.Taken.After(last.Taken) &&
			string(m.Identity.Root) == os.Getenv("TURNSTONE_BENCH_ROOT_DIGEST") &&
			m.Identity.Shape == turnstone.DefaultShape() {
			found, last = filepath.Dir(path), m
		}
	}
	if found == "" {
		return snapshot{}, errors.New("there is no snapshot to measure")
	}
	return snapshotIn(found), nil
}
