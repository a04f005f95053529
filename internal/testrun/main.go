// Command testrun runs the project's tests in parts, several at a time, for the targets of the Makefile. It says
// how far it is, and at the end what each part took and which tests were slowest. docs/testing.md says what runs
// where.
//
//	go run ./internal/testrun test
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const module = "turnstone.dev/turnstone"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	passed, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(2)
	}
	if !passed {
		os.Exit(1)
	}
}

// A settings is what a run depends on.
type settings struct {
	goTool string
	root   string // of the checkout
	cpus   int
	kernel string // a guest kernel made for tests; "": none
	kvm    bool   // the host has the device
	user   bool   // tests can run as another user than this one
	full   bool   // sweeps to their end, and packages that no change reaches
	base   string // the commit whose difference to the files is the change
	graph  graph
	// occupy keeps the machine busy until its result is called; dir is on the disk that it writes to.
	occupy func(dir string) (stop func())
	// programs is the digest of the programs that tests run, which go test does not know as their inputs.
	programs string
}

func run(ctx context.Context, args []string) (bool, error) {
	f := flag.NewFlagSet("testrun", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprintf(f.Output(), "usage: testrun [flags] check|short|test|again|busy [known|package…]\n")
		f.PrintDefaults()
	}
	s := settings{goTool: cmp.Or(os.Getenv("GO"), "go"), cpus: runtime.NumCPU(), kernel: os.Getenv("TEST_KERNEL"),
		user: os.Geteuid() == 0, occupy: makeBusy}
	f.BoolVar(&s.full, "full", false, "again: everything, and sweeps to their end")
	f.StringVar(&s.base, "base", "", "test, again: the commit that the files are compared with (default: the last one "+recent.String()+" older than the newest)")
	list := f.Bool("list", false, "print the parts, and run none")
	busy := f.Bool("busy", false, "test, again: once, on a busy machine")
	times := f.Int("n", 10, "busy: how often each has to pass")
	if err := f.Parse(args); err != nil {
		return false, err
	}
	var err error
	if s.root, err = os.Getwd(); err != nil {
		return false, err
	}
	if _, err := os.Stat("/dev/kvm"); err == nil {
		s.kvm = true
	}
	if s.graph, err = load(ctx, s.goTool, s.root); err != nil {
		return false, err
	}
	if s.base == "" && !s.full && (f.Arg(0) == "again" || f.Arg(0) == "test") {
		if s.base, err = before(ctx, s.root); err != nil && f.Arg(0) == "again" {
			return false, err
		}
	}
	if s.programs, err = (&part{inputs: []string{"bin/turn", "bin/turn-server", "bin/runsc",
		"bin/containerd-shim-turnstone-v2"}}).digest(s.root); err != nil {
		return false, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return false, err
	}
	r := &runner{root: s.root, out: os.Stdout, stamps: filepath.Join(cache, "turnstone-test", "passed")}
	if f.Arg(0) == "busy" {
		return s.busy(ctx, r, s.units(f.Args()[1:]), *times)
	}
	parts, err := s.plan(ctx, f.Arg(0))
	if err != nil {
		return false, err
	}
	if *list {
		for _, p := range parts {
			fmt.Printf("%-14s %q %q\n", p.name, p.env, p.argv)
		}
		return true, nil
	}
	if *busy {
		return s.whole(ctx, r, f.Arg(0), parts)
	}
	// Each more at a time makes all of them slower, by what waits under load cost.
	return r.run(ctx, atOnce, parts), nil
}

// atOnce is how many parts run at a time.
const atOnce = 2

// recent is the age up to which commits belong to the change that is tested.
const recent = 4 * time.Hour

// before returns the last commit that is not recent, counted from the newest one.
func before(ctx context.Context, root string) (string, error) {
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir, cmd.Stderr = root, os.Stderr
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	text, err := git("log", "-1", "--format=%ct")
	if err != nil {
		return "", fmt.Errorf("git log: %w; name a commit by -base, or run everything with -full", err)
	}
	newest, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return "", err
	}
	base, err := git("rev-list", "-1", fmt.Sprintf("--before=%d", newest-int64(recent.Seconds())), "HEAD")
	if err == nil && base == "" {
		err = fmt.Errorf("no commit is older than %s: name one by -base, or run everything with -full", recent)
	}
	return base, err
}
