package main

import (
	"context"
	"fmt"
	"time"

	"turnstone.dev/turnstone/internal/driver"
)

// startGoals are the maximum ratios of a turn to its floor, at p50: on gVisor to `runsc restore`,
// which does less than a turn's floor.
const (
	restoreGoal = 1.5
	floorGoal   = 1.3
)

// start compares `turn run` with the shortest way to the same result on the same substrate.
func (b *bench) start(ctx context.Context) error {
	if !hasFloor(b.substrate) {
		fmt.Printf("## Start\n\nThere is no floor to measure %s beside.\n\n", b.substrate)
		return nil
	}
	var restores, floors, turns []time.Duration
	phases := newPhases()
	for range b.runs {
		if b.substrate == driver.GVisor {
			took, _, err := b.floorTime(ctx, b.substrate, "restore")
			if err != nil {
				return err
			}
			restores = append(restores, took)
		}
		_, took, err := b.floorTime(ctx, b.substrate, "floor")
		if err != nil {
			return err
		}
		floors = append(floors, took)
		t, took, err := b.run(ctx, step("true"), nil)
		if err != nil {
			return err
		}
		turns = append(turns, took)
		phases.add(t.Phases, took)
	}
	fmt.Printf("## Start%s\n\n| | p50 | p99 |\n|---|---|---|\n", b.on())
	row := func(what string, d []time.Duration) {
		fmt.Printf("| %s | %s | %s |\n", what, ms(quantile(d, 50)), ms(quantile(d, 99)))
	}
	if len(restores) > 0 {
		row("bare `runsc restore --detach` of the checkpoint, until it returns", restores)
	}
	row("floor: the bare program on the snapshot, until `bash -c true` has run, the whole process",
		floors)
	row("`turn run` of one step `true`, the whole process", turns)
	if len(restores) > 0 {
		fmt.Printf("| `turn run` : bare restore (goal: %g) | %.2f | %.2f |\n", restoreGoal,
			ratio(turns, restores, 50), ratio(turns, restores, 99))
	}
	fmt.Printf("| `turn run` : floor (goal on qemu: %g) | %.2f | %.2f |\n\n", floorGoal,
		ratio(turns, floors, 50), ratio(turns, floors, 99))
	phases.print()
	return nil
}

// streaming measures a step with much output, and the memory of turn meanwhile. The agent's memory cannot be read
// inside a sandbox, whose processes are in a namespace without the agent.
func (b *bench) streaming(ctx context.Context) error {
	peak := make(chan string, 1)
	t, took, err := b.run(ctx, step("head -c "+b.stream+" /dev/zero"),
		func(pid int) { go func() { peak <- peakMemory(pid) }() })
	if err != nil {
		return err
	}
	s := t.Steps[0]
	bytesOut := s.StdoutInfo.Bytes
	millis := max(1, s.Millis) // a short stream may take less than one
	fmt.Printf("## Streaming%s\n\n| | |\n|---|---|\n"+
		"| standard output of one step | %d bytes, %s |\n", b.on(), bytesOut, s.StdoutInfo.Digest)
	fmt.Printf("| time of that step | %s (%.0f MB/s) |\n",
		ms(time.Duration(millis)*time.Millisecond), float64(bytesOut)/1e6/(float64(millis)/1e3))
	fmt.Printf("| whole turn | %s |\n", ms(took))
	fmt.Printf("| peak memory of `turn` (VmHWM; the machine is not counted) | %s |\n\n", <-peak)
	return nil
}
