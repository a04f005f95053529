package main

import (
	"context"
	"fmt"
)

// fleet measures the decisions about many nodes, without nodes.
func (b *bench) fleet(ctx context.Context) error {
	long := "1s"
	if b.quick() {
		long = "1x"
	}
	place, err := b.floorBenchmarks(ctx, "fleet", "Place|Full|Tick", long)
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
	for _, nodes := range []int{10, 1000, 10_000} {
		nodes = b.divide.Of(nodes)
		fmt.Printf("| decisions about claims in a second, %d nodes | %.0f |\n", nodes,
			place[fmt.Sprint("Place/nodes=", nodes)]["decisions/s"])
	}
	many, sandboxes := count(b.divide.Of(1000)), count(b.divide.Of(100_000))
	simulated := count(max(100, b.divide.Of(1000)))
	fmt.Printf("| a decision when all of %s nodes are full | %.0f µs |\n", many, place["Full"]["ns/op"]/1e3)
	fmt.Printf("| ten pools divided among %s nodes | %.1f ms |\n", many, place["Tick"]["ns/op"]/1e6)
	fmt.Printf("| memory for %s sandboxes on %s nodes: fleet | %.0f MiB |\n", sandboxes, many, nodes["Memory"]["MiB"])
	fmt.Printf("| the same: ledger of usage | %.0f MiB |\n", ledger["Ledger"]["MiB"])
	fmt.Printf("| simulated claims in a second of one processor, %s nodes | %.0f |\n\n", simulated,
		claims["Claims"]["claims/s"])
	return nil
}
