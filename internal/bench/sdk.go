package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// sdkRuns is the number of runs of each SDK.
const sdkRuns = 200

// sdk measures a command in a warm sandbox by the SDKs. Those of other languages have a program
// sdk/LANGUAGE/bench, which gets the number of runs, uses the server of TURN_HOST, and prints the
// milliseconds of each run on a line. One that is missing is left out.
func (b *bench) sdk(ctx context.Context) error {
	s, err := b.serve(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	fmt.Printf("## SDKs%s\n\n| `true` in a warm sandbox | p50 | p99 |\n|---|---|---|\n", b.on())
	found, err := b.floorBenchmarks(ctx, "client", "Exec", fmt.Sprintf("%dx", sdkRuns), s.remote...)
	if err != nil {
		return err
	}
	fmt.Printf("| Go | %.1f ms | %.1f ms |\n", found["Exec"]["p50-ms"], found["Exec"]["p99-ms"])
	programs, err := filepath.Glob("sdk/*/bench")
	if err != nil {
		return err
	}
	for _, program := range programs {
		if info, err := os.Stat(program); err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o100 == 0 {
			continue
		}
		all, err := s.timed(ctx, program)
		if err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		fmt.Printf("| %s | %s | %s |\n", filepath.Base(filepath.Dir(program)), ms(quantile(all, 50)),
			ms(quantile(all, 99)))
	}
	fmt.Println()
	return nil
}

// timed runs a program that prints milliseconds.
func (s *served) timed(ctx context.Context, program string) (all []time.Duration, err error) {
	cmd := exec.CommandContext(ctx, program, strconv.Itoa(sdkRuns))
	cmd.Env, cmd.Stderr = append(os.Environ(), s.remote...), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) {
		took, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		if err != nil {
			return nil, err
		}
		all = append(all, time.Duration(took*float64(time.Millisecond)))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("it prints nothing")
	}
	return all, nil
}
