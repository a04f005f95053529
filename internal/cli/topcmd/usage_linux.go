package topcmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
)

// ticks is the number of clock ticks in a second in /proc (USER_HZ), the same on all machines with
// Linux that sandboxes run on.
const ticks = 100

// A process is a line of /proc/PID/stat (proc(5)).
type process struct {
	parent   int
	cpu      time.Duration // with that of children that have ended
	resident int64         // pages
	start    uint64        // ticks after the boot
}

// usage returns what the holders of sandboxes and their descendants use. A holder whose PID belongs
// to another process by now has none.
func usage(infos []sandboxes.Info) map[turnstone.SandboxID]use {
	all := processes("/proc")
	children := map[int][]int{}
	for pid, p := range all {
		children[p.parent] = append(children[p.parent], pid)
	}
	out := map[turnstone.SandboxID]use{}
	for _, i := range infos {
		if p, ok := all[i.Holder.PID]; !ok || p.start != i.Holder.Start || i.State.Final() {
			continue
		}
		var u use
		sum(all, children, i.Holder.PID, map[int]bool{}, &u)
		out[i.ID] = u
	}
	return out
}

// sum adds a process and its descendants. The processes were read one after the other, so that a
// number may be that of two: seen keeps the sum finite.
func sum(all map[int]process, children map[int][]int, pid int, seen map[int]bool, u *use) {
	if seen[pid] {
		return
	}
	seen[pid] = true
	u.cpu += all[pid].cpu
	u.memory += turnstone.Bytes(all[pid].resident * int64(os.Getpagesize()))
	for _, c := range children[pid] {
		sum(all, children, c, seen, u)
	}
}

// processes reads all processes that can be read.
func processes(proc string) map[int]process {
	all := map[int]process{}
	dirs, _ := os.ReadDir(proc)
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(proc, d.Name(), "stat"))
		if p, ok := parseStat(text); err == nil && ok {
			all[pid] = p
		}
	}
	return all
}

// parseStat parses /proc/PID/stat. The second field is the program's name in parentheses, and may
// have any bytes.
func parseStat(text []byte) (p process, ok bool) {
	end := bytes.LastIndexByte(text, ')')
	f := strings.Fields(string(text[end+1:]))
	if end < 0 || len(f) < 22 {
		return p, false
	}
	var numbers [7]int64
	for i, field := range []int{4, 14, 15, 16, 17, 22, 24} { // from 1, as in proc(5)
		n, err := strconv.ParseInt(f[field-3], 10, 64)
		if err != nil || n < 0 {
			return p, false
		}
		numbers[i] = n
	}
	cpu := numbers[1] + numbers[2] + numbers[3] + numbers[4]
	if cpu < 0 || cpu > int64(1<<62)/int64(time.Second/ticks) {
		return p, false
	}
	return process{parent: int(numbers[0]), cpu: time.Duration(cpu) * (time.Second / ticks),
		start: uint64(numbers[5]), resident: numbers[6]}, true
}
