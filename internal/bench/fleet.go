package main

import (
	"context"
	"fmt"
)

// fleet measures the decisions about many nodes, without nodes.
func (b *bench) fleet(ctx context.Context) error {
	place, err := b.floorBenchmarks(ctx, "fleet", "Place|Full|Tick", "1s")
	if err != nil {
		return err
	}
	nodes, err := b.floorBenchmarks(ctx, "fleet", "Memory", "1x")
	if err != nil {
		return err
	}
	ledger, err := b.floorBenchmarks(ctx, "usage", "Ledger", "1x")
	if err != nil {
		return err
	}
	claims, err := b.floorBenchmarks(ctx, "sim", "Claims", "1x")
	if err != nil {
		return err
	}
	fmt.Print("## Fleet\n\n| what | |\n|---|---|\n")
	for _, nodes := range []string{"10", "1000", "10000"} {
		fmt.Printf("| decisions about claims in a second, %s nodes | %.0f |\n", nodes,
			place["Place/nodes="+nodes]["decisions/s"])
	}
	fmt.Printf("| a decision when all of 1,000 nodes are full | %.0f µs |\n", place["Full"]["ns/op"]/1e3)
	fmt.Printf("| ten pools divided among 1,000 nodes | %.1f ms |\n", place["Tick"]["ns/op"]/1e6)
	fmt.Printf("| memory for 100,000 sandboxes on 1,000 nodes: fleet | %.0f MiB |\n", nodes["Memory"]["MiB"])
	fmt.Printf("| the same: ledger of usage | %.0f MiB |\n", ledger["Ledger"]["MiB"])
	fmt.Printf("| simulated claims in a second of one processor, 1,000 nodes | %.0f |\n\n",
		claims["Claims"]["claims/s"])
	return nil
}
