package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"turnstone.dev/turnstone/internal/bench/tables"
	"turnstone.dev/turnstone/internal/statedir"
)

// A comparison runs the bench program of another commit and this one alternately: both measure on the same machine
// at the same time of day, so that their ratio means something where the figures alone do not.
type comparison struct {
	b      *bench
	base   string
	rounds int
	kept   string // folder of the commits that are built
	// program is the bench program of this checkout; empty: this one
	program string
}

func (c *comparison) addFlags() {
	flag.StringVar(&c.base, "base", "", "a commit to compare this checkout with")
	flag.IntVar(&c.rounds, "rounds", 5, "how often each side of a comparison runs")
	flag.StringVar(&c.kept, "kept", ".cache/base", "folder of the commits that are built for a comparison")
}

// A side is one of the two builds.
type side struct {
	name    string
	program string // the bench program
	root    string // of the checkout, in which the program runs
	turn    string
	floors  string
	home    string
	pages   []string
}

// run prints the comparison.
func (c *comparison) run(ctx context.Context, w io.Writer) (err error) {
	if slices.Contains(strings.Split(c.b.only, ","), "kubernetes") {
		return errors.New("the part kubernetes cannot be compared with a commit")
	}
	if c.rounds < 1 {
		return fmt.Errorf("-rounds %d: a comparison needs at least one", c.rounds)
	}
	base, commit, err := c.build(ctx)
	if err != nil {
		return err
	}
	now, err := c.here()
	if err != nil {
		return err
	}
	sides := []*side{base, now}
	for _, s := range sides {
		var home *statedir.Dir
		if home, err = newHome(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, removeHome(home)) }()
		s.home = home.Root
	}
	for round := range c.rounds {
		for _, s := range sides {
			fmt.Fprintf(os.Stderr, "bench: round %d of %d: %s\n", round+1, c.rounds, s.name)
			page, err := c.measure(ctx, s)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			s.pages = append(s.pages, page)
		}
		slices.Reverse(sides) // none is always behind the other
	}
	ratios := tables.Compare(base.pages, now.pages)
	if len(ratios) == 0 {
		return errors.New("the two builds have no number in common")
	}
	fmt.Fprintf(w, "## Compared with %.12s\n\nMedians of %d rounds, each of which ran base and this checkout one "+
		"after the other, in alternating order; %d runs of each start; the ratio is the median of the rounds' ratios; "+
		"load at the end: %s.\n\n", commit, c.rounds, c.b.runs, load())
	return tables.Print(w, ratios)
}

// build builds turn, the bench program and the floors of the commit in a clone of this checkout, which stays.
func (c *comparison) build(ctx context.Context) (*side, string, error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, "", err
	}
	commit, err := output(exec.CommandContext(ctx, "git", "rev-parse", "--verify", "--quiet", c.base+"^{commit}"))
	if err != nil {
		return nil, "", fmt.Errorf("%s is no commit of this repository: %w", c.base, err)
	}
	commit = strings.TrimSpace(commit)
	root, err := filepath.Abs(filepath.Join(c.kept, commit))
	if err != nil {
		return nil, "", err
	}
	s := &side{name: c.base, program: filepath.Join(root, ".cache", "bench"), root: root,
		turn: filepath.Join(root, "bin", "turn"), floors: filepath.Join(root, ".cache", "floors")}
	env := withoutMake(os.Environ())
	if _, err := os.Stat(s.program); err != nil { // the last that is built
		if err := os.RemoveAll(root); err != nil {
			return nil, "", err
		}
		for _, argv := range [][]string{{"git", "clone", "--quiet", "--shared", "--no-checkout", here, root},
			{"git", "-C", root, "checkout", "--quiet", "--detach", commit}, {"make", "-C", root, "build"},
			{goTool(), "-C", root, "build", "-buildvcs=false", "-o", s.program, "./internal/bench"}} {
			if err := runIn(ctx, here, env, argv[0], argv[1:]...); err != nil {
				return nil, "", err
			}
		}
	}
	for _, path := range c.b.needed() {
		// A part needs some of its floors on some substrates only; without one that it needs it fails.
		if err := buildFloors(ctx, root, s.floors, []string{path}); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s has no floor %s: %v\n", s.name, path, err)
		}
	}
	return s, commit, nil
}

// withoutMake returns an environment without the variables by which make passes its own to another make.
func withoutMake(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "MAKEFLAGS" || name == "MFLAGS" || name == "MAKELEVEL" || name == "MAKEOVERRIDES"
	})
}

// here returns the side of this checkout.
func (c *comparison) here() (*side, error) {
	s := &side{name: "this checkout", program: c.program, turn: c.b.turn, floors: c.b.floors, root: "."}
	var err error
	for _, path := range []*string{&s.turn, &s.floors, &s.root} {
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, err
		}
	}
	if s.program == "" {
		s.program, err = os.Executable()
	}
	return s, err
}

// newHome makes a state directory with the user's templates and kernel, and nothing else.
func newHome() (*statedir.Dir, error) {
	user, err := statedir.Open(os.Getenv("TURN_HOME"))
	if err != nil {
		return nil, err
	}
	home := &statedir.Dir{}
	if home.Root, err = os.MkdirTemp("", "turn-base-*"); err != nil {
		return nil, err
	}
	for _, part := range []string{"templates", "kernel"} {
		from, err := user.MkdirAll(part)
		if err == nil {
			err = os.Symlink(from, home.Path(part))
		}
		if err != nil {
			return nil, errors.Join(err, removeHome(home))
		}
	}
	return home, nil
}

func removeHome(home *statedir.Dir) (err error) {
	if home.HasMemory() {
		err = home.ForgetMemory()
	}
	return errors.Join(err, os.RemoveAll(home.Root))
}

// measure runs the bench program of a side, with flags that it has had since it began, and returns what it prints.
func (c *comparison) measure(ctx context.Context, s *side) (string, error) {
	args := []string{"-turn", s.turn, "-floors", s.floors, "-runs", strconv.Itoa(c.b.runs)}
	if c.b.only != "" {
		args = append(args, "-only", c.b.only)
	}
	cmd := exec.CommandContext(ctx, s.program, args...)
	bin := filepath.Dir(s.turn)
	cmd.Dir, cmd.Stderr = s.root, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it removes what it made
	// Older floors look for runsc in PATH only.
	cmd.Env = append(withoutMake(os.Environ()), "TURN_HOME="+s.home, "TURN_RUNSC="+filepath.Join(bin, "runsc"),
		"PATH="+os.Getenv("PATH")+string(filepath.ListSeparator)+bin)
	var page bytes.Buffer
	cmd.Stdout = &page
	err := cmd.Run()
	return page.String(), err
}
