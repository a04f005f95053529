package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"turnstone.dev/turnstone/internal/bench/clones"
	"turnstone.dev/turnstone/substrate"
)

// clonesAtOnce is the number of clones in the measurement of one clone's memory.
const clonesAtOnce = 4

// A processMemory is the memory of some processes on the host, in bytes. Pss counts a page that n
// processes share as one n-th in each.
type processMemory struct{ rss, pss, anonymous, private int64 }

// memoryOfTree sums the process pid and all its descendants.
func memoryOfTree(pid int) (processMemory, error) {
	return memoryOfProcesses(append(descendants(pid), pid)...)
}

func memoryOfProcesses(pids ...int) (m processMemory, err error) {
	fields := map[string]*int64{"Rss:": &m.rss, "Pss:": &m.pss, "Pss_Anon:": &m.anonymous,
		"Private_Clean:": &m.private, "Private_Dirty:": &m.private}
	for _, p := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p))
		if err != nil {
			return m, err
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) != 3 || fields[f[0]] == nil {
				continue
			}
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return m, err
			}
			*fields[f[0]] += kib << 10
		}
	}
	return m, nil
}

// descendants returns the children of pid and their descendants.
func descendants(pid int) (all []int) {
	for _, child := range children(pid) {
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

func children(pid int) (all []int) {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range paths {
		b, _ := os.ReadFile(path) // a thread that has ended has none
		for _, f := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(f); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// memoryOfClones starts n clones of one snapshot and returns the memory of each after all have
// run true. The processes of each are the descendants of its first process.
func memoryOfClones(ctx context.Context, driver substrate.Substrate,
	m substrate.Machine, n int) ([]processMemory, error) {
	var firsts []int
	for range n {
		before := children(os.Getpid())
		clone, err := clones.Start(ctx, driver, m)
		if err != nil {
			return nil, err
		}
		defer clone.Close()
		own := slices.DeleteFunc(children(os.Getpid()),
			func(pid int) bool { return slices.Contains(before, pid) })
		if len(own) != 1 {
			return nil, fmt.Errorf("a clone has the processes %v", own)
		}
		firsts = append(firsts, own[0])
	}
	var all []processMemory
	for _, pid := range firsts {
		one, err := memoryOfTree(pid)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// memory prints the memory of clones on the host.
func (b *bench) memory(ctx context.Context) error {
	p, err := b.product(ctx, b.substrate)
	if err != nil {
		return err
	}
	all, err := memoryOfClones(ctx, p.driver, p.machine, b.divide.Of(clonesAtOnce))
	if err != nil {
		return err
	}
	fmt.Printf("## Memory of a clone%s\n\n%d clones of one snapshot at once, after each has run "+
		"`true`; all processes of each, of a guest with %s.\n\n",
		b.on(), len(all), p.machine.Shape.Memory.Human())
	fmt.Println("| clone | Rss | Pss | Pss, anonymous | private |\n|---|---|---|---|---|")
	for i, m := range all {
		fmt.Printf("| %d | %s | %s | %s | %s |\n", i+1, mib(m.rss), mib(m.pss), mib(m.anonymous),
			mib(m.private))
	}
	fmt.Println()
	return nil
}
