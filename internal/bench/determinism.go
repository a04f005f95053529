package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/bench/corpus"
)

// A verdict counts the runs of a program under a tier that were equal to its first run.
type verdict struct {
	runs, equal int
	first       *corpus.Difference
}

func (v *verdict) String() string {
	switch {
	case v == nil || v.runs == 0:
		return "–"
	case v.equal == v.runs:
		return "yes"
	}
	return fmt.Sprintf("no, %d of %d", v.equal, v.runs)
}

// corpus runs all programs of the corpus under both tiers, every other time on a busy host, and
// prints which of them are identical each time.
func (b *bench) corpus(ctx context.Context) error {
	groups, tiers, err := b.census()
	if err != nil {
		return err
	}
	x, err := executor.Open(ctx, b.options())
	if err != nil {
		return err
	}
	defer func() { _ = x.Close() }()
	dir := filepath.Join(b.dir, "corpus")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	r, err := corpus.NewRunner(ctx, x, dir, func(string) {})
	own := func(g corpus.Group) bool { return g.Image == corpus.Template }
	if err == nil && slices.ContainsFunc(groups, own) {
		err = r.BuildTemplate(ctx)
	}
	if err != nil {
		return err
	}
	// each run is compared with the first
	c := census{runner: r, runs: max(2, b.runs), verdicts: map[turnstone.Tier]map[string]*verdict{}}
	var failed []error // the others continue
	for _, tier := range tiers {
		c.verdicts[tier] = map[string]*verdict{}
		for _, g := range groups {
			for _, part := range g.Apart(tier) {
				if err := c.measure(ctx, part, tier); err != nil {
					failed = append(failed, fmt.Errorf("%s: %w", tier, err))
				}
			}
		}
	}
	c.print(groups)
	return errors.Join(failed...)
}

// census returns the groups and tiers that a run measures. A quick one has a program that needs no template of its
// own, and not the strict tier, whose starts take seconds.
func (b *bench) census() (groups []corpus.Group, tiers []turnstone.Tier, err error) {
	names, only := b.groups, b.tierOnly
	if b.quick() && names+only == "" {
		names, only = "go", string(turnstone.TierSeeded)
	}
	all, err := corpus.Groups()
	for _, g := range all {
		if names != "" && !slices.Contains(strings.Split(names, ","), g.Name) {
			continue
		}
		if b.quick() {
			g.Programs = g.Programs[:1]
		}
		groups = append(groups, g)
	}
	for _, tier := range turnstone.Tiers() {
		if only == "" || string(tier) == only {
			tiers = append(tiers, tier)
		}
	}
	return groups, tiers, err
}

// A census has the verdicts on all programs.
type census struct {
	runner   *corpus.Runner
	runs     int
	verdicts map[turnstone.Tier]map[string]*verdict
}

func (c *census) measure(ctx context.Context, g corpus.Group, tier turnstone.Tier) error {
	first, err := c.runner.Run(ctx, g, tier)
	if err != nil {
		return err
	}
	defer func() { _ = c.runner.Forget(ctx, first) }()
	of := c.verdicts[tier]
	for _, p := range g.Programs {
		of[p.Name] = &verdict{}
	}
	for i := 1; i < c.runs; i++ {
		all, err := c.again(ctx, g, tier, first, i%2 == 1)
		if err != nil {
			return err
		}
		differ := corpus.Programs(all)
		for _, p := range g.Programs {
			v := of[p.Name]
			v.runs++
			if !slices.Contains(differ, p.Name) {
				v.equal++
			}
		}
		for _, d := range all {
			if v := of[d.Program]; v == nil { // files, of a program that is unknown
				fmt.Fprintf(os.Stderr, "determinism: %s: group %s: %s\n", tier, g.Name, d)
			} else if v.first == nil {
				v.first = &d
				fmt.Fprintf(os.Stderr, "determinism: %s: %s\n", tier, d)
			}
		}
	}
	return nil
}

// again runs g once more and compares it with the first run.
func (c *census) again(ctx context.Context, g corpus.Group, tier turnstone.Tier,
	first *turnstone.TurnReport, busy bool) ([]corpus.Difference, error) {
	if busy {
		stop := corpus.Busy()
		defer stop()
	}
	turn, err := c.runner.Run(ctx, g, tier)
	defer func() { _ = c.runner.Forget(ctx, turn) }()
	if err != nil {
		return nil, err
	}
	return c.runner.Compare(ctx, first, turn)
}

func (c *census) print(groups []corpus.Group) {
	fmt.Printf("## Determinism\n\n%d runs of each program, every other one on a busy host; the "+
		"figures are programs whose results, outputs and files were the same each time.\n\n",
		c.runs)
	fmt.Println("| group | programs | seeded | strict |\n|---|---|---|---|")
	total, same := 0, map[turnstone.Tier]int{}
	for _, g := range groups {
		cells, names := []string(nil), []string(nil)
		for _, p := range g.Programs {
			names = append(names, p.Name)
		}
		for _, tier := range turnstone.Tiers() {
			n, measured := 0, 0
			for _, name := range names {
				if v := c.verdicts[tier][name]; v != nil && v.runs > 0 {
					measured++
					if v.equal == v.runs {
						n++
					}
				}
			}
			same[tier] += n
			cells = append(cells, fmt.Sprintf("%d of %d", n, measured))
		}
		total += len(names)
		fmt.Printf("| `%s` | %s | %s |\n", g.Name, strings.Join(names, ", "),
			strings.Join(cells, " | "))
	}
	fmt.Printf("| all | %d | %d | %d |\n\n", total, same[turnstone.TierSeeded],
		same[turnstone.TierStrict])
	c.printDifferent(groups)
}

// printDifferent prints the programs that were not the same each time, if there are any.
func (c *census) printDifferent(groups []corpus.Group) {
	header := "| program | seeded | strict | reason |\n|---|---|---|---|\n"
	for _, g := range groups {
		for _, p := range g.Programs {
			seeded, strict := c.verdicts[turnstone.TierSeeded][p.Name],
				c.verdicts[turnstone.TierStrict][p.Name]
			reason, expected := corpus.Reason(turnstone.TierSeeded, p.Name)
			if !expected {
				reason = "**unknown**"
			}
			for _, v := range []*verdict{seeded, strict} {
				if v != nil && v.equal < v.runs {
					fmt.Printf("%s| %s | %s | %s | %s |\n", header, p.Name, seeded, strict, reason)
					header = ""
					break
				}
			}
		}
	}
	fmt.Println()
}
