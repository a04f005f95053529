package main

import (
	"context"
	"fmt"
	"strings"
)

// poolSettings are the sandboxes that wait in the part pool.
const poolSettings = `TURN_SERVER_POOLS=[{template = "base", memory = "256MiB", min = 20, max = 20}]`

// pool compares claims of sandboxes that wait with commands in a sandbox that is there.
func (b *bench) pool(ctx context.Context) error {
	s, err := b.serve(ctx, poolSettings)
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
		{"claim: CreateSandbox, channel, exec", "claim"}} {
		fmt.Printf("| %s | %.1f ms | %.1f ms |\n", row[0], m[row[1]+"-p50-ms"], m[row[1]+"-p99-ms"])
	}
	fmt.Printf("| the claim's addition (goal: 5 ms, 20 ms) | %.1f ms | %.1f ms |\n",
		m["claim-p50-ms"]-m["bare-p50-ms"], m["claim-p99-ms"]-m["bare-p99-ms"])
	if found, err = b.floorBenchmarks(ctx, "warm", "Burst", "1x", env...); err != nil {
		return err
	}
	m = found["Burst"]
	fmt.Printf("\n200 claims, 64 at once, of a pool of 20: %.0f served; the 20th after %.0f ms, the last "+
		"after %.1f s.\n", m["served"], m["20th-ms"], m["last-ms"]/1e3)
	return b.bookkeeping(ctx)
}

// bookkeeping prints what 1,000 machines that wait cost the pool.
func (b *bench) bookkeeping(ctx context.Context) error {
	found, err := b.floorBenchmarks(ctx, "pool", ".", "2000x")
	if err != nil {
		return err
	}
	fmt.Print("\n| bookkeeping of 1,000 machines that wait | time |\n|---|---|\n")
	for _, row := range [][2]string{{"a claim", "Claim"}, {"a look, each second", "Look"},
		{"its statistics", "Stats"}} {
		fmt.Printf("| %s | %.1f µs |\n", row[0], found[row[1]]["ns/op"]/1e3)
	}
	return nil
}
