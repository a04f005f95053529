package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/driver"
)

// needed returns the packages whose floors the selected parts run, as paths below the module's root.
func (b *bench) needed() (all []string) {
	for _, part := range b.parts() {
		for _, name := range part.floors {
			if path := "./" + filepath.Join("internal", name); b.selected(part.name) && !slices.Contains(all, path) {
				all = append(all, path)
			}
		}
	}
	return all
}

// buildFloors builds the test binaries of packages of the checkout at root into the folder to. GOFLAGS decides how,
// as for the programs beside them. Packages that the checkout lacks are left out.
func buildFloors(ctx context.Context, root, to string, packages []string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	packages = slices.DeleteFunc(slices.Clone(packages), func(path string) bool {
		_, err := os.Stat(filepath.Join(root, path))
		return err != nil
	})
	if len(packages) == 0 {
		return nil
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	return runIn(ctx, root, nil, goTool(), append([]string{"test", "-c", "-vet=off", "-ldflags=-s", "-o",
		to + string(filepath.Separator)}, packages...)...)
}

// goTool returns the go command, which GO names as it does for make.
func goTool() string {
	if name := os.Getenv("GO"); name != "" {
		return name
	}
	return "go"
}

// runIn runs a program in a folder. What it prints goes to standard error.
func runIn(ctx context.Context, dir string, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
	if env != nil {
		cmd.Env = env
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, args[0], err)
	}
	return nil
}

// accelOf returns the accelerator of QEMU's guests, by the isolation that the driver reports. State directories also
// have snapshots for the other one, after the part kvm.
func accelOf(isolation string) string {
	if strings.Contains(isolation, "KVM") {
		return "kvm"
	}
	return "tcg"
}

// A floor is the test binary of a substrate's package as a separate program, which drives the bare
// program of that substrate: the same snapshot, without this project's code around it.
func (b *bench) floor(ctx context.Context, substrate, mode string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(b.floors, substrate+".test"))
	cmd.Env = append(os.Environ(), "TURNSTONE_BENCH="+mode, "TURNSTONE_BENCH_ROOT="+b.template.Root,
		"TURNSTONE_BENCH_ROOT_DIGEST="+string(b.template.RootDigest),
		"TURNSTONE_BENCH_ACCEL="+b.accel, b.divide.Environ())
	return cmd
}

// floorTime runs a mode that prints its duration, and also returns the duration of the whole
// process.
func (b *bench) floorTime(ctx context.Context, substrate,
	mode string) (inner, whole time.Duration, err error) {
	var out, said strings.Builder
	cmd := b.floor(ctx, substrate, mode)
	cmd.Stdout, cmd.Stderr = &out, &said
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("floor of %s: %w: %s", substrate, err, said.String())
	}
	whole = time.Since(began)
	var micros int64
	if _, err := fmt.Sscan(out.String(), &micros); err != nil {
		return 0, 0, fmt.Errorf("floor of %s: %w: %q", substrate, err, out.String())
	}
	return time.Duration(micros) * time.Microsecond, whole, nil
}

// inner measures the duration that a mode of a floor prints, and whole that of the process.
func (b *bench) inner(substrate, mode string) measurement {
	return func(ctx context.Context) (time.Duration, error) {
		took, _, err := b.floorTime(ctx, substrate, mode)
		return took, err
	}
}

func (b *bench) whole(substrate, mode string) measurement {
	return func(ctx context.Context) (time.Duration, error) {
		_, took, err := b.floorTime(ctx, substrate, mode)
		return took, err
	}
}

// hasFloor reports whether there is a floor of a substrate.
func hasFloor(substrate string) bool {
	return substrate == driver.GVisor || substrate == driver.QEMU
}
