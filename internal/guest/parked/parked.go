// Package parked holds a process at the first instruction of its program: the kernel has executed
// it, and the dynamic linker has loaded its libraries, but the program has read nothing yet. The
// arguments, the environment, the directory and the standard input are given to it at the release,
// so that the program starts as if it had been executed with them.
//
// The process is traced (ptrace(2)) until then, and calls what the release needs itself: a few
// instructions stand in place of its program's first ones, which are put back. Nothing remains of
// them, and no library of this package is loaded.
//
// The new arguments and the environment replace placeholders in the same memory, because the C
// library has noted already where the environment is.
package parked

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// The room for arguments and environment of a parked process.
const (
	MaxArgs = 16       // arguments
	MaxEnv  = 512      // variables
	room    = 48 << 10 // bytes of both, about
)

// limit bounds each wait for the process, which does little between two stops.
const limit = 5 * time.Second

// Placeholders returns the arguments and the environment with which a process is executed that will
// be parked. Its first argument stays name.
func Placeholders(name string) (argv, env []string) {
	argv = make([]string, MaxArgs)
	argv[0], argv[1] = name, strings.Repeat(" ", room)
	return argv, make([]string, MaxEnv)
}

// A Tracee is a process that was executed with Placeholders as a tracee, and stops after that.
type Tracee struct {
	PID  int
	Name string // its first argument
	// On runs a function in the thread that is the process's tracer.
	On func(func())
	// Stops yields each of its stops, and is closed when it has ended.
	Stops <-chan syscall.WaitStatus
	// Stat is the content of its /proc/PID/stat.
	Stat func() ([]byte, error)
}

// A Start is what a parked process becomes.
type Start struct {
	Argv []string // beginning with the process's name
	Env  []string
	Cwd  string
	Move [][2]int // descriptors that become others, which are closed
	Shut []int    // descriptors to close after that
}

// Fits reports whether a process that was parked as name can become s. The dynamic linker has read
// the environment already, so that s must have none of its variables.
func Fits(name string, s Start) bool {
	if len(s.Argv) == 0 || len(s.Argv) > MaxArgs || s.Argv[0] != name || len(s.Env) > MaxEnv {
		return false
	}
	n := 0
	for _, text := range s.Argv {
		n += len(text) + 1
		if strings.IndexByte(text, 0) >= 0 {
			return false
		}
	}
	for _, kv := range s.Env {
		n += len(kv) + 1
		for _, p := range []string{"LD_", "GLIBC_TUNABLES", "MALLOC_"} {
			if strings.HasPrefix(kv, p) {
				return false
			}
		}
		if strings.IndexByte(kv, 0) >= 0 {
			return false
		}
	}
	return n <= room && len(s.Cwd) < maxCwd && strings.IndexByte(s.Cwd, 0) < 0
}

// maxCwd is PATH_MAX.
const maxCwd = 4096

// A layout is where the kernel has put the beginning of a process (System V ABI, AMD64, figure
// 3.9).
type layout struct {
	sp    uint64 // of the number of arguments
	env   uint64 // of the pointers to the environment
	text  uint64 // of the first argument's text
	entry uint64 // the program's first instruction
}

// The keys of the auxiliary vector (getauxval(3)).
const (
	atNull  = 0
	atBase  = 7
	atEntry = 9
)

const (
	word    = 8
	maxAuxv = 64 // pairs
	// stackSize is the size of what a layout is read from.
	stackSize = word * (1 + MaxArgs + 1 + MaxEnv + 1 + 2*maxAuxv)
)

// newLayout reads the beginning of a process of Placeholders(name), whose stack pointer is sp.
func newLayout(stack []byte, sp uint64, name string) (layout, error) {
	l := layout{sp: sp, env: sp + word*(1+MaxArgs+1)}
	if len(stack) != stackSize || sp%word != 0 || sp > 1<<63 {
		return l, errors.New("the stack is not that of a new process")
	}
	at := func(i int) uint64 { return binary.NativeEndian.Uint64(stack[word*i:]) }
	argv, env := Placeholders(name)
	if at(0) != uint64(len(argv)) {
		return l, errors.New("the arguments are others")
	}
	l.text = at(1)
	next, i := l.text, 1
	for _, list := range [][]string{argv, env} {
		for _, text := range list {
			if at(i) != next {
				return l, errors.New("arguments and environment are not one after another")
			}
			next += uint64(len(text)) + 1
			i++
		}
		if at(i) != 0 {
			return l, errors.New("a list has no end")
		}
		i++
	}
	if l.text < sp || next < l.text {
		return l, errors.New("the texts are not above the stack")
	}
	base := uint64(0)
	for end := i + 2*maxAuxv; i < end && at(i) != atNull; i += 2 {
		switch at(i) {
		case atBase:
			base = at(i + 1)
		case atEntry:
			l.entry = at(i + 1)
		}
	}
	if base == 0 || l.entry == 0 {
		return l, errors.New("the program has no dynamic linker")
	}
	return l, nil
}

// A block is what a Start puts into memory.
type block struct {
	sp    uint64 // the new stack pointer
	stack []byte // at sp: number of arguments, pointers to them, pointers to the environment
	text  []byte // at layout.text
	env   uint64 // where the environment's text begins, which ends with text
}

// block lays out s, which must fit. The environment stays where it was, and the arguments end
// before it: a program finds it behind its arguments, and by the C library's pointer.
func (l layout) block(s Start) block {
	b := block{sp: l.env - word*uint64(len(s.Argv)+2)}
	put := func(v uint64) { b.stack = binary.NativeEndian.AppendUint64(b.stack, v) }
	add := func(list []string) {
		for _, text := range list {
			put(l.text + uint64(len(b.text)))
			b.text = append(append(b.text, text...), 0)
		}
		put(0)
	}
	put(uint64(len(s.Argv)))
	add(s.Argv)
	b.env = l.text + uint64(len(b.text))
	add(s.Env)
	for range MaxEnv - len(s.Env) { // pointers to placeholders
		put(0)
	}
	return b
}

// mapSize is the size of Linux's struct prctl_mm_map.
const mapSize = 104

// memoryMap returns Linux's struct prctl_mm_map of a process with the given stat and break, whose
// arguments begin at the second and environment at the third of text, and end at the last. It keeps
// everything else.
func memoryMap(stat []byte, brk uint64, argv, env, end uint64) []byte {
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	field := func(n int) (v uint64) { // counted as in proc(5)
		if n -= 3; n < len(f) {
			_, _ = fmt.Sscan(f[n], &v)
		}
		return v
	}
	const startCode, endCode, startStack, startData, endData, startBrk = 26, 27, 28, 45, 46, 47
	var b []byte
	for _, v := range []uint64{field(startCode), field(endCode), field(startData), field(endData),
		field(startBrk), brk, field(startStack), argv, env, env, end,
		0} { // no other auxiliary vector
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	const noFile = 1<<32 - 1 // as the executable
	b = binary.NativeEndian.AppendUint32(b, 0)
	return binary.NativeEndian.AppendUint32(b, noFile)
}
