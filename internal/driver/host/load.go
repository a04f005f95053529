package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"turnstone.dev/turnstone/internal/driver/console"
)

// userHZ is the unit of processor time in /proc, on x86-64 and elsewhere (proc(5)).
const userHZ = 100

// Load returns the process's use of this host, with all of its threads.
func Load(pid int) (l console.Load, err error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	whole, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return l, err
	}
	_, ticks, err := parseStat(whole)
	if err != nil {
		return l, err
	}
	l.CPU = time.Duration(ticks) * (time.Second / userHZ)
	tasks, err := filepath.Glob(filepath.Join(dir, "task", "*", "stat"))
	if err != nil {
		return l, err
	}
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil { // it has ended
			continue
		}
		state, _, err := parseStat(b)
		if err != nil {
			return l, err
		}
		l.Busy = l.Busy || state != 'S' && state != 'I'
	}
	return l, nil
}

// parseStat reads the state and the processor time, in ticks, from a file stat (proc(5)).
func parseStat(b []byte) (state byte, ticks uint64, err error) {
	// The name in parentheses may contain any byte.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 13 || len(fields[0]) != 1 {
		return 0, 0, errors.New("a file stat of a process is too short")
	}
	user, err1 := strconv.ParseUint(string(fields[11]), 10, 63)
	system, err2 := strconv.ParseUint(string(fields[12]), 10, 63)
	return fields[0][0], user + system, errors.Join(err1, err2)
}

// maxTree bounds the processes of CPUTime.
const maxTree = 10_000

// CPUTime returns the processor time of a process and all below it, also of those that have ended
// and were waited for. What cannot be read counts nothing.
func CPUTime(pid int) (sum time.Duration) {
	todo := []int{pid}
	for n := 0; len(todo) > 0 && n < maxTree; n++ {
		dir := fmt.Sprintf("/proc/%d", todo[0])
		todo = todo[1:]
		b, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue // it has ended
		}
		ticks, err := treeTicks(b)
		if err != nil {
			continue
		}
		sum += time.Duration(ticks) * (time.Second / userHZ)
		lists, _ := filepath.Glob(filepath.Join(dir, "task", "*", "children")) // the pattern is valid
		for _, path := range lists {
			text, _ := os.ReadFile(path) // the thread may have ended
			for _, word := range bytes.Fields(text) {
				if child, err := strconv.Atoi(string(word)); err == nil {
					todo = append(todo, child)
				}
			}
		}
	}
	return sum
}

// treeTicks reads the processor time of a process and of its children that ended, from a file stat.
func treeTicks(b []byte) (ticks uint64, err error) {
	if _, ticks, err = parseStat(b); err != nil {
		return 0, err
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 15 {
		return 0, errors.New("a file stat of a process is too short")
	}
	for _, f := range fields[13:15] {
		n, err := strconv.ParseUint(string(f), 10, 63)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return ticks, nil
}
