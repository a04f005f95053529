package main

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// uiRuns is the number of visits of each session.
const uiRuns = 30

// ui measures how soon the page of turn ui is there, in Chromium on this machine.
func (b *bench) ui(ctx context.Context) error {
	sessions := []string{"13", "1000"}
	if b.quick() {
		sessions = sessions[:1]
	}
	found, err := b.floorBenchmarks(ctx, "ui", "Page/^("+strings.Join(sessions, "|")+")$", b.divide.Times(uiRuns),
		"TURN_TEST_BROWSER=1")
	if err != nil {
		return err
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	fmt.Printf("## The page\n\nIn headless Chromium without a GPU, %d visits each; load %s.\n\n"+
		"| of a session with | first paint, p50 | p99 | tree and receipt, p50 | p99 | first visit of a new browser |\n"+
		"|---|---|---|---|---|---|\n", b.divide.Of(uiRuns), strings.Fields(string(load))[0])
	for _, turns := range sessions {
		m := found["Page/"+turns]
		fmt.Printf("| %s turns | %.0f ms | %.0f ms | %.0f ms | %.0f ms | %.0f ms |\n", turns,
			m["paint-p50-ms"], m["paint-p99-ms"], m["shown-p50-ms"], m["shown-p99-ms"], m["cold-ms"])
	}
	fmt.Println()
	return nil
}
