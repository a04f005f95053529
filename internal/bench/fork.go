package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes"
)

const (
	// forkMemory is the assumed memory of a clone on the host, before it is measured.
	forkMemory = 96 << 20
	// forkScript creates the memory content of the forked machine: files that were read, and a
	// waiting shell. A busy shell would measure the emulation of 100 machines.
	forkScript = "find /usr/share -type f | head -500 | xargs cat >/dev/null; touch /run/read; " +
		"sleep 100000; echo on"
)

// forks clones one running machine many times and runs a command in each clone.
func (b *bench) forks(ctx context.Context) error {
	h, err := statedir.Open(os.Getenv("TURN_HOME"))
	if err != nil {
		return err
	}
	s := sandboxes.NewStore(h.Root)
	n, err := roomFor(b.clones)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, b.turn, "sandbox", "create", "-q").Output()
	if err != nil {
		return fmt.Errorf("sandbox create: %w", err)
	}
	parent := turnstone.SandboxID(strings.TrimSpace(string(out)))
	made := []turnstone.SandboxID{parent}
	defer func() {
		for _, id := range made {
			_ = s.Remove(context.WithoutCancel(ctx), id)
		}
	}()
	_, err = s.StartDetached(ctx, parent,
		sandboxes.Command{Argv: []string{"bash", "-c", forkScript}})
	if err != nil {
		return err
	}
	time.Sleep(b.divide.Time(3 * time.Second)) // for the files; nothing depends on it
	r, err := b.fork(ctx, s, parent, n)
	made = append(made, r.ids...)
	if err != nil {
		return err
	}
	var all, pss, ram, holder []int64
	for _, id := range r.ids {
		m, err := memoryOf(s, id)
		if err != nil {
			return err
		}
		all, pss, ram, holder = append(all, m.machine), append(pss, m.pss), append(ram, m.ram),
			append(holder, m.holder)
	}
	fmt.Printf("\n## Live forks%s\n\nOne sandbox of %s with a shell that waits, cloned %d times "+
		"by one command.\n\n", b.on(), turnstone.DefaultShape().Memory, n)
	fmt.Printf("| what | |\n|---|---|\n")
	fmt.Printf("| the first clone is up | %s |\n", r.first.Round(time.Millisecond))
	fmt.Printf("| all are up | %s |\n", r.up.Round(time.Millisecond))
	fmt.Printf("| all have answered a first command | %s |\n", r.answered.Round(time.Millisecond))
	if b.substrate == driver.QEMU {
		fmt.Printf("| what a guest has changed of its memory, median, after its first command | "+
			"%s |\n", mib(medianOf(ram)))
	}
	fmt.Printf("| memory of a clone's machine, median, after its first command: private, Pss | "+
		"%s, %s |\n", mib(medianOf(all)), mib(medianOf(pss)))
	fmt.Printf("| private memory of a clone's holder, median | %s |\n", mib(medianOf(holder)))
	return nil
}

// roomFor returns the number of clones for which the host has memory, at most want.
func roomFor(want int) (int, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), "MemAvailable:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, errors.New("/proc/meminfo has no MemAvailable")
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	return int(min(int64(want), kib<<10/forkMemory)), err
}

// forked is the result of a fork.
type forked struct {
	ids                 []turnstone.SandboxID
	first, up, answered time.Duration
}

// fork runs the command, and a first command in each clone as soon as its name is printed.
func (b *bench) fork(ctx context.Context, s *sandboxes.Store, parent turnstone.SandboxID,
	n int) (forked, error) {
	var r forked
	cmd := exec.CommandContext(ctx, b.turn, "sandbox", "fork", "-q", "-n", strconv.Itoa(n),
		string(parent))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return r, err
	}
	var wg sync.WaitGroup
	errs := make(chan error, n)
	in := bufio.NewScanner(out)
	for in.Scan() {
		id := turnstone.SandboxID(in.Text())
		if r.ids = append(r.ids, id); len(r.ids) == 1 {
			r.first = time.Since(began)
		}
		wg.Go(func() {
			exit, err := s.Exec(ctx, id, sandboxes.Command{Argv: []string{"true"}})
			if err == nil && exit.ExitCode != 0 {
				err = fmt.Errorf("true ended with %d", exit.ExitCode)
			}
			if err != nil {
				errs <- fmt.Errorf("%s: %w", id, err)
			}
		})
	}
	r.up = time.Since(began)
	wg.Wait()
	r.answered = time.Since(began)
	close(errs)
	return r, errors.Join(in.Err(), cmd.Wait(), <-errs)
}

// A cloneMemory is the memory of one clone that is not shared, in bytes.
type cloneMemory struct{ machine, pss, ram, holder int64 }

func memoryOf(s *sandboxes.Store, id turnstone.SandboxID) (cloneMemory, error) {
	var m cloneMemory
	i, err := s.Get(id)
	if err != nil {
		return m, err
	}
	holder, err := memoryOfProcesses(i.Holder.PID)
	if err != nil {
		return m, err
	}
	machines := children(i.Holder.PID)
	if len(machines) != 1 {
		return m, fmt.Errorf("the holder of %s has the processes %v", id, machines)
	}
	all, err := memoryOfTree(machines[0])
	if err != nil {
		return m, err
	}
	m.machine, m.pss, m.holder = all.private, all.pss, holder.private
	if i.Substrate == driver.QEMU {
		m.ram, err = ramOf(machines[0])
	}
	return m, err
}

// ramOf returns the part of a guest's memory that belongs to the process pid alone. That is only the
// anonymous part: a page of the file that no other clone has touched yet counts as private, but is
// in the host's page cache anyway.
func ramOf(pid int) (sum int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	counts := false
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		// a mapping; the following lines describe it
		if len(fields) >= 5 && !strings.HasSuffix(fields[0], ":") {
			counts = strings.Contains(line, "/vm/ram")
		} else if counts && len(fields) == 3 && fields[0] == "Anonymous:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, err
			}
			sum += kib << 10
		}
	}
	return sum, err
}

func medianOf(v []int64) int64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
