package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/bench/evidence"
)

// proofRuns bounds the runs of each turn of the part proof.
const proofRuns = 7

// proof measures evidence, stored traces, and deterministic turns.
func (b *bench) proof(ctx context.Context) error {
	fmt.Printf("## Proof%s\n\n| evidence of a turn, p50 | |\n|---|---|\n", b.on())
	t, _, err := b.run(ctx, step("true"), nil, "--network", "off")
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "keys")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := evidence.Measure(ctx, []byte(t.Receipt), dir, b.divide); err != nil {
		return err
	}
	if err := b.keepTraces(ctx); err != nil {
		return err
	}
	return b.determinism(ctx)
}

// keepTraces compares turns with 1,000 commands that are recorded, and so stored, with turns whose
// shell records one.
func (b *bench) keepTraces(ctx context.Context) error {
	n := b.divide.Of(1000)
	commands := strings.Repeat("/bin/true\n", n)
	traced, plain := step(commands), step("bash <<'END'\n"+commands+"END")
	var kept, whole [2][]time.Duration
	for range min(b.runs, proofRuns) {
		for i, doc := range []string{traced, plain} {
			t, took, err := b.run(ctx, doc, nil, "--network", "off")
			if err != nil {
				return err
			}
			kept[i], whole[i] = append(kept[i], phase(t, "keep")), append(whole[i], took)
		}
	}
	fmt.Printf("\n| a step of %s commands, p50 | %[1]s in the trace | one in the trace | added |\n"+
		"|---|---|---|---|\n", count(n))
	for _, row := range []struct {
		name string
		d    [2][]time.Duration
	}{{"keep: record, trace, receipt and outputs, synced", kept}, {"the whole turn", whole}} {
		with, without := quantile(row.d[0], 50), quantile(row.d[1], 50)
		fmt.Printf("| %s | %s | %s | %s |\n", row.name, ms(with), ms(without), ms(with-without))
	}
	return nil
}

func phase(t *turnstone.TurnReport, name string) time.Duration {
	for _, p := range t.Phases {
		if p.Name == name {
			return time.Duration(p.Took)
		}
	}
	return 0
}

// determinism compares the same turn with and without --deterministic, alternately.
func (b *bench) determinism(ctx context.Context) error {
	fmt.Printf("\n| the whole turn, p50 | ordinary | deterministic | ratio |\n|---|---|---|---|\n")
	work := step(fmt.Sprintf("for i in $(seq %d); do /bin/true; done\n"+
		"for ((i = 0; i < %d; i++)); do :; done", b.divide.Of(300), b.divide.Of(100000)))
	tiers := []struct{ name, substrate string }{{"seeded", "gvisor"}, {"strict", "qemu"}}
	if b.quick() {
		tiers = tiers[:1] // a start under the other takes seconds
	}
	for _, tier := range tiers {
		plain, fixed, err := b.tier(ctx, work, tier.name, tier.substrate)
		if err != nil {
			fmt.Printf("| %s | – | not available | – |\n", tier.name)
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", tier.name, err)
			continue
		}
		fmt.Printf("| %s, on %s | %s | %s | %.2f |\n", tier.name, tier.substrate,
			ms(quantile(plain, 50)), ms(quantile(fixed, 50)), ratio(fixed, plain, 50))
	}
	return nil
}

// tier runs a document on a substrate, alternately as it is and under a tier.
func (b *bench) tier(ctx context.Context, doc, name, substrate string) (plain,
	fixed []time.Duration, err error) {
	args := []string{"--network", "off", "--substrate", substrate}
	for i := range min(b.runs, proofRuns) + b.warmUps() {
		_, with, err := b.run(ctx, doc, nil, append(args, "--deterministic", "--tier", name)...)
		if err != nil {
			return nil, nil, err
		}
		_, without, err := b.run(ctx, doc, nil, args...)
		if err != nil {
			return nil, nil, err
		}
		if i >= b.warmUps() {
			plain, fixed = append(plain, without), append(fixed, with)
		}
	}
	return plain, fixed, nil
}
