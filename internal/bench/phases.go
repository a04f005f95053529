package main

import (
	"fmt"
	"time"

	"turnstone.dev/turnstone"
)

// phases are the durations of the phases of turns, in the order of their first occurrence.
type phases struct {
	names []string
	took  map[string][]time.Duration
}

func newPhases() *phases { return &phases{took: map[string][]time.Duration{}} }

// add adds a turn whose whole process took the given time. Time outside of all phases belongs to
// the process.
func (p *phases) add(turn []turnstone.Phase, took time.Duration) {
	for _, ph := range turn {
		d := time.Duration(ph.Took)
		if p.took[ph.Name] == nil {
			p.names = append(p.names, ph.Name)
		}
		p.took[ph.Name] = append(p.took[ph.Name], d)
		took -= d
	}
	p.took["process"] = append(p.took["process"], took)
}

func (p *phases) print() {
	fmt.Printf("| phase of `turn run` | p50 | p99 |\n|---|---|---|\n")
	for _, name := range append(p.names, "process") {
		fmt.Printf("| %s | %s | %s |\n", name, ms(quantile(p.took[name], 50)),
			ms(quantile(p.took[name], 99)))
	}
	fmt.Println()
}
