package client_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/client"
	"turnstone.dev/turnstone/internal/bench/size"
)

// A subject measures one of "exec", "up", "down" and "first" once, in milliseconds.
type subject struct {
	name string
	once func(what string) (float64, error)
}

// BenchmarkSDKs compares this package with the SDKs of other languages, on the server that the
// environment names. make bench ONLY=sdk runs it. TURNSTONE_BENCH_SDKS has lines of a name, a program
// and its arguments, which sdk/python/bench.py describes. In each round all are measured once, one
// after another, so that the differences mean something on a busy machine.
func BenchmarkSDKs(b *testing.B) {
	programs, own := os.Getenv("TURNSTONE_BENCH_SDKS"), os.Getenv("TURNSTONE_BENCH_GO")
	if programs == "" && own == "" {
		b.Skip("TURNSTONE_BENCH_SDKS names no programs")
	}
	var all []subject
	if own != "" {
		once := goSubject(b)
		all = append(all, subject{"go", once}, subject{"channel", func(what string) (float64, error) {
			if what != "up" && what != "down" {
				return 0, nil
			}
			return once("channel-" + what)
		}})
	}
	for line := range strings.Lines(programs) {
		if words := strings.Fields(line); len(words) > 1 {
			all = append(all, subject{words[0], programSubject(b, words[1:])})
		}
	}
	for _, what := range []string{"exec", "up", "down", "first"} {
		b.Run(what, func(b *testing.B) { rounds(b, all, what) })
	}
}

func rounds(b *testing.B, all []subject, what string) {
	took := make([][]float64, len(all))
	measure := func(keep bool) {
		for _, i := range rand.Perm(len(all)) { // nobody is always behind the same one
			ms, err := all[i].once(what)
			if err != nil {
				b.Fatalf("%s: %s: %v", all[i].name, what, err)
			}
			if keep {
				took[i] = append(took[i], ms)
			}
		}
	}
	for range min(b.N, 5) { // to be warm
		measure(false)
	}
	for range b.N {
		measure(true)
	}
	for i, s := range all {
		added := make([]float64, len(took[i]))
		for n := range added {
			added[n] = took[i][n] - took[0][n]
		}
		slices.Sort(added)
		b.ReportMetric(added[len(added)/2], s.name+"-added-ms")
		if all[0].name == "go" { // the share of the channel's rate
			b.ReportMetric(share(took[1], took[i]), s.name+"-share")
		}
	}
	for i, s := range all {
		slices.Sort(took[i])
		b.ReportMetric(took[i][0], s.name+"-min-ms")
		b.ReportMetric(took[i][len(took[i])/2], s.name+"-p50-ms")
		b.ReportMetric(took[i][len(took[i])*99/100], s.name+"-p99-ms")
	}
}

// share returns the median of the ratios of two rows of times.
func share(of, took []float64) float64 {
	ratios := make([]float64, len(took))
	for n := range ratios {
		ratios[n] = of[n] / took[n]
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// goSubject measures this package.
func goSubject(b *testing.B) func(string) (float64, error) {
	ctx := b.Context()
	c, err := client.New(ctx, client.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	sb, err := c.Sandbox(ctx, client.SandboxOptions{Image: "base", NoSession: true})
	if err != nil {
		b.Fatal(err)
	}
	content := make([]byte, size.OfProgram().Of(64<<20))
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	const path = "/var/tmp/bench"
	return func(what string) (float64, error) {
		began := time.Now()
		var err error
		var fresh *client.Sandbox
		switch what {
		case "exec":
			_, err = sb.Exec(ctx, []string{"true"})
		case "up":
			err = sb.Files().Write(ctx, path, content)
		case "down":
			var got bytes.Buffer // of any size
			if err = sb.Files().ReadTo(ctx, path, &got); err == nil && got.Len() != len(content) {
				err = fmt.Errorf("%d bytes", got.Len())
			}
		case "channel-up": // what a command's input and output carry
			_, err = sb.Exec(ctx, []string{"sh", "-c", "cat > /dev/null"}, client.Stdin(bytes.NewReader(content)))
		case "channel-down":
			_, err = sb.Exec(ctx, []string{"head", "-c", strconv.Itoa(len(content)), "/dev/zero"},
				client.Stdout(struct{ io.Writer }{io.Discard}))
		case "first":
			if fresh, err = c.Sandbox(ctx, client.SandboxOptions{Image: "base", NoSession: true}); err == nil {
				_, err = fresh.Exec(ctx, []string{"echo", "hello"})
			}
		}
		took := time.Since(began)
		if fresh != nil && err == nil {
			err = fresh.Close(ctx)
		}
		return float64(took.Microseconds()) / 1000, err
	}
}

// programSubject starts a program that measures another SDK.
func programSubject(b *testing.B, argv []string) func(string) (float64, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(out)
	return func(what string) (float64, error) {
		if _, err := io.WriteString(in, what+" 1\n"); err != nil {
			return 0, err
		}
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		var took []float64
		if err := json.Unmarshal(line, &took); err != nil {
			return 0, err
		}
		if len(took) != 1 {
			return 0, fmt.Errorf("it prints %q", line)
		}
		return took[0], nil
	}
}
