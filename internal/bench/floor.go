package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/driver"
)

// A floor is the test binary of a substrate's package as a separate program, which drives the bare
// program of that substrate: the same snapshot, without this project's code around it.
func (b *bench) floor(ctx context.Context, substrate, mode string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(b.floors, substrate+".test"))
	cmd.Env = append(os.Environ(), "TURNSTONE_BENCH="+mode, "TURNSTONE_BENCH_ROOT="+b.template.Root,
		"TURNSTONE_BENCH_ROOT_DIGEST="+string(b.template.RootDigest),
		"TURNSTONE_BENCH_ACCEL="+b.accel)
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
