package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone/internal/bench/storage"
	"turnstone.dev/turnstone/internal/statedir"
)

// keysDepth is the length in turns of the history on which sealed starts are measured.
const keysDepth = 100

// keys measures the cost of sealing: of objects and files, and of the start of a turn.
func (b *bench) keys(ctx context.Context) error {
	if err := storage.MeasureKeys(ctx, b.dir, b.divide); err != nil {
		return err
	}
	return b.sealedStarts(ctx)
}

// sealedStarts measures starts on one history in two state directories, of which one seals it: in
// pairs, alternately first. Each turn of the history adds a file.
func (b *bench) sealedStarts(ctx context.Context) (err error) {
	name, file := fmt.Sprintf("bench-keys-%d", time.Now().Unix()), filepath.Join(b.dir, "keys.tzst")
	defer func() { _ = b.command(context.WithoutCancel(ctx), "session", "rm", name) }()
	for n := 1; n <= b.divide.Of(keysDepth); n++ {
		doc := step(fmt.Sprintf("seq %d00000 %d19999 >%d", n, n, n))
		if _, _, err := b.run(ctx, doc, nil, "--session", name, "--network", "off"); err != nil {
			return fmt.Errorf("turn %d: %w", n, err)
		}
	}
	if err := b.command(ctx, "session", "export", name, "-o", file); err != nil {
		return err
	}
	var homes [2]*statedir.Dir
	for i, settings := range []string{"", "[keys]\nseal = \"session\"\n"} {
		home, err := b.keysHome(ctx, fmt.Sprintf("keys-home-%d", i), settings, file)
		if home != nil {
			defer func() { _ = errors.Join(home.ForgetMemory(), os.RemoveAll(home.Root)) }()
		}
		if err != nil {
			return err
		}
		homes[i] = home
	}
	return b.comparedStarts(ctx, homes, name)
}

// keysHome makes a state directory with templates and snapshots of the bench's and with the session
// in file. The caller removes it, also after an error, if it is not nil.
func (b *bench) keysHome(ctx context.Context, name, settings, file string) (*statedir.Dir, error) {
	home := &statedir.Dir{Root: filepath.Join(b.dir, name)}
	if err := os.Mkdir(home.Root, 0o700); err != nil {
		return nil, err
	}
	for _, part := range []string{"templates", "kernel", "snapshots", "cache", "gvisor"} {
		if err := os.Symlink(b.home.Path(part), home.Path(part)); err != nil {
			return home, err
		}
	}
	if err := os.WriteFile(home.Path("config.toml"), []byte(settings), 0o600); err != nil {
		return home, err
	}
	_, err := b.output(ctx, []string{"TURN_HOME=" + home.Root}, "session", "import", file)
	if keys, _ := filepath.Glob(home.Path("domains", "*.json")); err == nil && settings != "" &&
		len(keys) == 0 {
		err = errors.New("the imported session is not sealed")
	}
	return home, err
}

// comparedStarts prints starts on a session in two state directories, the second of which seals it.
func (b *bench) comparedStarts(ctx context.Context, homes [2]*statedir.Dir, session string) error {
	var starts, wholes, cold [2][]time.Duration
	for i := range b.runs + 1 {
		for k := range homes {
			of := (i + k) % len(homes)
			before, _, took, err := b.startAt(ctx, []string{"TURN_HOME=" + homes[of].Root}, session,
				b.divide.Of(keysDepth), i)
			if err != nil {
				return err
			}
			if i == 0 { // makes the images
				cold[of] = append(cold[of], before)
				continue
			}
			starts[of], wholes[of] = append(starts[of], before), append(wholes[of], took)
		}
	}
	fmt.Printf("A turn on a history of %d turns%s, p50 of %d; the ratio is the median of the pairs' "+
		"ratios.\n\n| | public | sealed | ratio |\n|---|---|---|---|\n", b.divide.Of(keysDepth), b.on(), b.runs)
	for _, row := range []struct {
		name  string
		costs [2][]time.Duration
	}{{"start", starts}, {"whole command", wholes}, {"first start, which makes the images", cold}} {
		fmt.Printf("| %s | %s | %s | **%.2f** |\n", row.name, ms(quantile(row.costs[0], 50)),
			ms(quantile(row.costs[1], 50)), pairRatio(row.costs))
	}
	return nil
}

// pairRatio returns the median of the ratios of pairs.
func pairRatio(costs [2][]time.Duration) float64 {
	var all []time.Duration // in millionths
	for i := range costs[0] {
		all = append(all, costs[1][i]*1e6/costs[0][i])
	}
	return float64(quantile(all, 50)) / 1e6
}
