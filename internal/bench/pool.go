package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
)

// Sizes of the part pool, which the floor warm has, too: the sandboxes that wait, and the claims of a burst.
const (
	poolWaiting = 20
	poolClaims  = 200
	poolAtOnce  = 64
)

// pool compares claims of sandboxes that wait with commands in a sandbox that is there.
func (b *bench) pool(ctx context.Context) error {
	s, err := b.serve(ctx, fmt.Sprintf(
		`TURN_SERVER_POOLS=[{template = "base", memory = "256MiB", min = %d, max = %[1]d}]`, b.divide.Of(poolWaiting)))
	if err != nil {
		return err
	}
	defer s.end()
	id, err := b.output(ctx, []string{"TURN_HOME=" + b.home.Root}, "sandbox", "create", "-q",
		"--memory", "256MiB")
	if err != nil {
		return err
	}
	id = strings.TrimSpace(id)
	defer b.remove(ctx, id)
	env := []string{"TURNSTONE_BENCH_HOME=" + b.home.Root, "TURNSTONE_BENCH_CLIENT=" + s.dir,
		"TURNSTONE_BENCH_TOKEN=" + s.token, "TURNSTONE_BENCH_SANDBOX=" + id}
	found, err := b.floorBenchmarks(ctx, "warm", "Claim", fmt.Sprintf("%dx", b.runs), env...)
	if err != nil {
		return err
	}
	m := found["Claim"]
	fmt.Printf("## Warm pool%s\n\n| until the first byte of `echo` | p50 | p99 |\n|---|---|---|\n", b.on())
	for _, row := range [][2]string{{"exec in a sandbox that is there, no server", "bare"},
		{"CreateSandbox through the gateway, with its channel's statement", "create"},
		{"claim: CreateSandbox, channel, exec", "claim"},
		{"the first exec there, with a channel of its own", "first"},
		{"the next exec there, with a channel of its own", "again"},
		{"for comparison: one question to an agent, no server", "ask"}} {
		fmt.Printf("| %s | %.1f ms | %.1f ms |\n", row[0], m[row[1]+"-p50-ms"], m[row[1]+"-p99-ms"])
	}
	fmt.Printf("| the claim's addition (goal: 5 ms, 20 ms) | %.1f ms | %.1f ms |\n",
		m["claim-p50-ms"]-m["bare-p50-ms"], m["claim-p99-ms"]-m["bare-p99-ms"])
	if found, err = b.floorBenchmarks(ctx, "warm", "Phases", fmt.Sprintf("%dx", b.runs),
		env...); err != nil {
		return err
	}
	m = found["Phases"]
	fmt.Print("\n| parts of CreateSandbox | p50 | p99 |\n|---|---|---|\n")
	for _, row := range []string{"queue", "check", "record", "seal", "take", "configure", "create",
		"rest", "all"} {
		if _, has := m[row+"-p50-ms"]; has {
			fmt.Printf("| %s | %.1f ms | %.1f ms |\n", row, m[row+"-p50-ms"], m[row+"-p99-ms"])
		}
	}
	if err := b.burst(ctx, env); err != nil {
		return err
	}
	if !b.quick() { // the part server runs both, too
		if err := b.throughput(ctx, id); err != nil {
			return err
		}
		if err := b.relayed(ctx); err != nil {
			return err
		}
	}
	return errors.Join(b.bookkeeping(ctx), b.paused(ctx))
}

// burst prints how many claims at once are served.
func (b *bench) burst(ctx context.Context, env []string) error {
	found, err := b.floorBenchmarks(ctx, "warm", "Burst", "1x", env...)
	if err != nil {
		return err
	}
	m := found["Burst"]
	fmt.Printf("\n%d claims, %d at once, of a pool of %d: %.0f served; the %[3]dth after %.0[5]f ms, the last "+
		"after %.1[6]f s.\n\n", b.divide.Of(poolClaims), b.divide.Of(poolAtOnce), b.divide.Of(poolWaiting), m["served"],
		m["warm-ms"], m["last-ms"]/1e3)
	return nil
}

// Bounds of the sandboxes that are paused at the same time.
const (
	mostPaused = 50
	leaveFree  = 4 << 30 // bytes of the host's memory
)

// paused prints the memory of idle sandboxes and of paused ones. Each has run a command.
func (b *bench) paused(ctx context.Context) error {
	store := sandboxes.NewStore(b.home.Root)
	var idle, paused []int64 // Pss of each
	began := time.Now()
	for len(paused) < b.divide.Of(mostPaused) {
		free, err := availableMemory()
		if err != nil {
			return err
		}
		if free < int64(b.divide.Of(leaveFree)) {
			break
		}
		id, err := b.output(ctx, []string{"TURN_HOME=" + b.home.Root}, "sandbox", "create", "-q",
			"--memory", "256MiB")
		if err != nil {
			return err
		}
		id = strings.TrimSpace(id)
		defer b.remove(ctx, id)
		before, after, err := pause(ctx, store, turnstone.SandboxID(id))
		if err != nil {
			return err
		}
		idle, paused = append(idle, before), append(paused, after)
	}
	if len(paused) == 0 {
		return errors.New("there is no memory for a paused sandbox")
	}
	slices.Sort(idle)
	slices.Sort(paused)
	fmt.Printf("\n%d paused sandboxes at the same time, made and paused one after another in %.0f s: "+
		"each has %s at the median (%s at most) of memory on the host (Pss of all its processes); "+
		"idle ones, before their pause, %s.\n", len(paused), time.Since(began).Seconds(),
		mib(paused[len(paused)/2]), mib(paused[len(paused)-1]), mib(idle[len(idle)/2]))
	return nil
}

// pause runs a command in a sandbox and pauses it. It returns the memory before and after.
func pause(ctx context.Context, store *sandboxes.Store, id turnstone.SandboxID) (idle, paused int64,
	err error) {
	if _, err := store.Exec(ctx, id, sandboxes.Command{Argv: []string{"bash", "-c", "echo"}}); err != nil {
		return 0, 0, err
	}
	i, err := store.Get(id)
	if err != nil {
		return 0, 0, err
	}
	before, err := memoryOfTree(i.Holder.PID)
	if err != nil {
		return 0, 0, err
	}
	c, err := store.Control(ctx, id)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Pause(ctx); err != nil {
		return 0, 0, err
	}
	after, err := memoryOfTree(i.Holder.PID)
	return before.pss, after.pss, err
}

// availableMemory returns the host's available memory in bytes.
func availableMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemAvailable:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo does not say what is available")
}

// bookkeeping prints what 1,000 machines that wait cost the pool.
func (b *bench) bookkeeping(ctx context.Context) error {
	found, err := b.floorBenchmarks(ctx, "pool", ".", b.divide.Times(2000))
	if err != nil {
		return err
	}
	fmt.Printf("\n| bookkeeping of %s machines that wait | time |\n|---|---|\n", count(b.divide.Of(1000)))
	for _, row := range [][2]string{{"a claim", "Claim"}, {"a look, each second", "Look"},
		{"its statistics", "Stats"}} {
		fmt.Printf("| %s | %.1f µs |\n", row[0], found[row[1]]["ns/op"]/1e3)
	}
	return nil
}
