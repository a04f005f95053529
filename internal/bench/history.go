package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// historyDepths returns the lengths of the histories on which a start is measured, in turns: 1, 10, 100 and 500 of
// 500.
func historyDepths(most int) []int {
	all := []int{1, most / 50, most / 5, most}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(n int) bool { return n == 0 })
}

// history measures starts on histories: a session of 500 real turns, each of which adds a file. A
// start's duration is from the command's beginning to the first step, without the step.
func (b *bench) history(ctx context.Context) error {
	name := fmt.Sprintf("bench-%d", time.Now().Unix())
	size := int64(b.state) / int64(b.depth)
	blob := filepath.Join(b.dir, "blob")
	defer func() { _ = b.command(ctx, "session", "rm", name) }()
	fmt.Printf("\n## Start on a history%s\n\nEach turn added %s; %s in all at the end. p50 of "+
		"%d.\n\n", b.on(), turnstone.Bytes(size).Human(), b.state.Human(), b.runs)
	fmt.Println("| turns | start | of the first | images under it | a turn that changes nothing: " +
		"collect + keep | such a turn, whole |")
	fmt.Println("|---|---|---|---|---|---|")
	var first time.Duration
	depths := historyDepths(b.depth)
	for n := 1; n <= b.depth; n++ {
		if err := writeRandom(blob, size); err != nil {
			return err
		}
		dest := fmt.Sprintf("%s:/workspace/data/%d", blob, n)
		_, _, err := b.run(ctx, step("true"), nil, "--session", name, "--add", dest,
			"--network", "off")
		if err != nil {
			return fmt.Errorf("turn %d: %w", n, err)
		}
		if !slices.Contains(depths, n) {
			continue
		}
		start, commit, whole, err := b.startsOn(ctx, name, n)
		if err != nil {
			return err
		}
		if first == 0 {
			first = start
		}
		fmt.Printf("| %d | %s | %.2f | %s | %s | %s |\n", n, ms(start),
			float64(start)/float64(first), b.images(), ms(commit), ms(whole))
	}
	return nil
}

// startsOn measures starts on turn n of a session, each on a separate branch.
func (b *bench) startsOn(ctx context.Context, session string,
	n int) (start, commit, whole time.Duration, err error) {
	var starts, commits, wholes []time.Duration
	for i := range b.runs + b.warmUps() {
		before, after, took, err := b.startAt(ctx, nil, session, n, i)
		if err != nil {
			return 0, 0, 0, err
		}
		if i < b.warmUps() {
			continue // the turn may have to create an image
		}
		starts, commits, wholes = append(starts, before), append(commits, after),
			append(wholes, took)
	}
	return quantile(starts, 50), quantile(commits, 50), quantile(wholes, 50), nil
}

// startAt runs a turn on turn n of a session, on a new branch, the i-th on it. It returns the times
// before its step and after it, and that of the process. env is as for runWith.
func (b *bench) startAt(ctx context.Context, env []string, session string, n, i int) (before, after,
	took time.Duration, err error) {
	branch := fmt.Sprintf("at%d-%d", n, i)
	_, err = b.output(ctx, env, "fork", fmt.Sprintf("%s@%d", session, n), "--branch", branch)
	if err != nil {
		return 0, 0, 0, err
	}
	t, took, err := b.runWith(ctx, env, step("true"), nil, "--session", session, "--branch", branch,
		"--network", "off")
	if err != nil {
		return 0, 0, 0, err
	}
	for _, ph := range t.Phases {
		d := time.Duration(ph.Took)
		switch ph.Name {
		case "steps":
		case "collect", "keep":
			after += d
		case "close":
		default:
			before += d
		}
	}
	return before, after, took, nil
}

func (b *bench) command(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, b.turn, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("turn %s: %w: %s", args[0], err, out)
	}
	return nil
}

// images returns the number of images, and their disk usage.
func (b *bench) images() string {
	h, err := statedir.Open(os.Getenv("TURN_HOME"))
	if err != nil {
		return err.Error()
	}
	n, size := 0, int64(0)
	entries, _ := os.ReadDir(h.Path("images", "images"))
	for _, e := range entries {
		if filepath.Ext(e.Name()) == "" {
			n++
			if st, err := e.Info(); err == nil {
				if sys, ok := st.Sys().(*syscall.Stat_t); ok {
					size += sys.Blocks * 512
				}
			}
		}
	}
	return fmt.Sprintf("%d, %s", n, turnstone.Bytes(size).Human())
}

func writeRandom(path string, size int64) error {
	b := make([]byte, size)
	_, _ = rand.Read(b) // documented never to fail
	return os.WriteFile(path, b, 0o600)
}
