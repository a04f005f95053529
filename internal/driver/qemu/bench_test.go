package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// benchmark is this test binary as a separate program, which the command bench measures beside
// `turn run`.
func benchmark(mode string) error {
	h, err := statedir.Open(os.Getenv("TURN_HOME"))
	if err != nil {
		return err
	}
	switch mode {
	case "script":
		return script(h)
	case "bare":
		return bareChannel(h)
	}
	return bare(h).Run(context.Background(), mode)
}

// bare is QEMU on the newest snapshot.
func bare(h *statedir.Dir) substratetest.Bare {
	return substratetest.Bare{Network: benchNetwork,
		Start: func(context.Context) (substrate.Sandbox, int, error) {
			vm, err := clone(h)
			if err != nil { // a nil *machine is not a nil Sandbox
				return nil, 0, err
			}
			return vm, vm.PID(), nil
		}}
}

// newest returns the folder and the manifest of the latest snapshot of the template whose root
// image has the digest $TURNSTONE_BENCH_ROOT_DIGEST, with the default shape; $TURNSTONE_BENCH_ACCEL
// selects kvm or tcg.
func newest(h *statedir.Dir) (dir string, m manifest, err error) {
	all, _ := filepath.Glob(h.Path("snapshots", "*", manifestFile))
	for _, path := range all {
		var other manifest
		b, rerr := os.ReadFile(path)
		if rerr == nil && json.Unmarshal(b, &other) == nil && other.Taken.After(m.Taken) &&
			other.Identity.Accel != "" && strings.HasPrefix(string(other.Identity.Accel),
			os.Getenv("TURNSTONE_BENCH_ACCEL")) &&
			string(other.Identity.Root) == os.Getenv("TURNSTONE_BENCH_ROOT_DIGEST") &&
			other.Identity.Shape == turnstone.DefaultShape() {
			dir, m = filepath.Dir(path), other
		}
	}
	if dir == "" {
		err = errors.New("there is no snapshot to measure")
	}
	return dir, m, err
}

// clone is the shortest way from a snapshot to a machine, without checks and locks.
func clone(h *statedir.Dir) (*machine, error) {
	dir, man, err := newest(h)
	if err != nil {
		return nil, err
	}
	id := man.Identity
	binary, err := host.FindSystem(binaryName)
	if err != nil {
		return nil, err
	}
	s := &Substrate{home: h, binary: binary, accel: id.Accel, wall: Jail{Wall: open}}
	if id.Accel == accelKVM && os.Geteuid() == 0 {
		s.wall.Wall = jailed // only a jail gives the device to root's QEMU
	}
	var f files
	f.ram, err = os.OpenFile(filepath.Join(dir, ramFile), os.O_RDWR, 0)
	if err == nil {
		f.root, err = os.Open(os.Getenv("TURNSTONE_BENCH_ROOT"))
	}
	if err == nil {
		f.kernel, err = s.stub()
	}
	if err == nil {
		f.scratch, err = s.scratch(context.Background(),
			&snapshot{scratch: filepath.Join(dir, scratchFile)})
	}
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	args := arguments(engine{accel: id.Accel, cpu: id.CPUModel, bios: id.Firmware}, id.Shape, true, disks{})
	if os.Getenv("TURNSTONE_BENCH_NETWORK") == "user" { // QEMU's own network instead of Turnstone's
		for i, arg := range args {
			if strings.HasPrefix(arg, "stream,id=net,") {
				args[i] = "user,id=net"
			}
		}
	}
	vm, err := s.start(id.Shape, args, f)
	if err != nil {
		return nil, err
	}
	go func() {
		state, _ := os.ReadFile(filepath.Join(dir, stateFile))
		_, _ = w.Write(state)
		_ = w.Close()
	}()
	_, err = vm.mon.send(negotiate, passState(r), ignoreShared, command{Execute: "migrate-incoming",
		Arguments: stateURI})
	return vm, err
}

var benchNetwork = wire.SandboxNetwork{Address: network.GuestAddress, Gateway: network.Gateway,
	DNS: []string{network.DNS}}

// script runs standard input as a script in a clone.
func script(h *statedir.Dir) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	vm, err := clone(h)
	if err != nil {
		return err
	}
	defer func() { _ = vm.Close() }()
	ctx := context.Background()
	client, _, err := substratetest.Configure(ctx, vm, substrate.Machine{}, &benchNetwork)
	if err != nil {
		return err
	}
	exit, err := client.Start(ctx,
		wire.ProcessStartParams{Argv: []string{"bash", "-c", string(text)}},
		wire.Stdio{Out: os.Stdout, Err: os.Stderr})
	if err == nil && exit.Exit.ExitCode != 0 {
		err = fmt.Errorf("%s: exit %d", text, exit.Exit.ExitCode)
	}
	return err
}
