package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"turnstone.dev/turnstone/shim/guest"
)

// groupRoot is where a sandbox has its control groups (cgroup-v2.rst).
const groupRoot = "/sys/fs/cgroup"

func groupDir(id string) string { return filepath.Join(groupRoot, "pod-"+id) }

// enterGroup makes a control group for the container and moves the helper into it, with what it
// starts. On a kernel without control groups only the machine bounds the container.
func enterGroup(id string, l guest.Limits) error {
	dir := groupDir(id)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil
	}
	// not all kernels have all controllers
	for _, c := range []string{"+memory", "+cpu", "+pids"} {
		_ = os.WriteFile(filepath.Join(groupRoot, "cgroup.subtree_control"), []byte(c), 0)
	}
	if err := setLimits(dir, l); err != nil {
		return err
	}
	return joinGroup(id)
}

func joinGroup(id string) error {
	err := os.WriteFile(filepath.Join(groupDir(id), "cgroup.procs"), []byte("0"), 0)
	if err != nil {
		err = os.WriteFile(filepath.Join(groupDir(id), "cgroup.procs"),
			[]byte(strconv.Itoa(os.Getpid())), 0)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func setLimits(dir string, l guest.Limits) error {
	limit := func(name string, n int64) error {
		text := "max"
		if n > 0 {
			text = strconv.FormatInt(n, 10)
		}
		err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0)
		if n <= 0 || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			return nil // the machine's own bound stays
		}
		return err
	}
	if err := limit("memory.max", l.Memory); err != nil {
		return fmt.Errorf("memory limit: %w", err)
	}
	if err := limit("pids.max", l.PIDs); err != nil {
		return fmt.Errorf("limit of processes: %w", err)
	}
	if l.CPUQuota > 0 && l.CPUPeriod > 0 {
		_ = os.WriteFile(filepath.Join(dir, "cpu.max"),
			fmt.Appendf(nil, "%d %d", l.CPUQuota, l.CPUPeriod), 0)
	}
	return nil
}

// relimit applies new limits to a container.
func relimit(id string) error {
	var l guest.Limits
	if err := read(id, "", guest.FileLimits, &l); err != nil {
		return err
	}
	return setLimits(groupDir(id), l)
}

// killGroup ends what is left of a container, except the helper.
func killGroup(id string) {
	for range 3 { // a process may fork meanwhile
		for line := range strings.SplitSeq(text(groupDir(id), "cgroup.procs"), "\n") {
			if pid, err := strconv.Atoi(line); err == nil && pid > 1 && pid != os.Getpid() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

// printStats prints what the container uses.
func printStats(id string) error {
	dir := groupDir(id)
	var s guest.Stats
	s.CPU = field(dir, "cpu.stat", "usage_usec") * 1000
	s.Memory = number(dir, "memory.current")
	s.Limit = number(dir, "memory.max")
	s.PIDs = number(dir, "pids.current")
	s.OOM = field(dir, "memory.events", "oom_kill")
	return json.NewEncoder(os.Stdout).Encode(s)
}

// number returns a number of a file; 0: there is none, or it is "max".
func number(dir, name string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSpace(text(dir, name)), 10, 64)
	if err != nil || n == math.MaxUint64 {
		return 0
	}
	return n
}

// field returns the number of a key in a file.
func field(dir, name, key string) uint64 {
	for line := range strings.SplitSeq(text(dir, name), "\n") {
		if v, ok := strings.CutPrefix(line, key+" "); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}

func text(dir, name string) string {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 64<<10))
	return string(b)
}
