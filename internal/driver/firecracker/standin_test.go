package firecracker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

func TestMain(m *testing.M) {
	substratetest.Child(hold, benchmark)
	goleak.VerifyTestMain(leaktest.Patient(m), goleak.Cleanup(func(code int) {
		if standinDir != "" {
			_ = os.RemoveAll(standinDir)
		}
		os.Exit(code)
	}))
}

// standin builds the program that implements Firecracker's API, once. It is static, so that it also
// runs in a jail.
var (
	standinOnce sync.Once
	standinDir  string
	errStandin  error
)

func standin(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("TURN_TEST_STANDIN"); path != "" { // for hosts without Go
		return path
	}
	standinOnce.Do(func() {
		if standinDir, errStandin = os.MkdirTemp("", "turnstone-standin-"); errStandin != nil {
			return
		}
		_ = os.Chmod(standinDir, 0o755)
		cmd := exec.Command("go", "build", "-tags", "netgo,osusergo",
			"-ldflags", `-s -w -linkmode external -extldflags "-static"`,
			"-o", filepath.Join(standinDir, "firecracker"), "./internal/standin")
		if out, err := cmd.CombinedOutput(); err != nil {
			errStandin = fmt.Errorf("%w: %s", err, out)
		}
	})
	if errStandin != nil {
		t.Fatal(errStandin)
	}
	return filepath.Join(standinDir, "firecracker")
}

// A bench is a state directory with a stand-in for Firecracker, and a machine to start.
type bench struct {
	s       *Substrate
	m       substrate.Machine
	dir     string
	log     string // the stand-in's log
	told    []string
	telling sync.Mutex
}

// newBench returns a bench whose stand-in has a fault; "" means no fault.
func newBench(t testing.TB, fault string) *bench {
	t.Helper()
	b := &bench{dir: t.TempDir()}
	b.log = filepath.Join(b.dir, "log")
	b.s = b.substrate(t, fault)
	b.m = b.machine(t)
	return b
}

// substrate opens the bench's state directory with another fault.
func (b *bench) substrate(t testing.TB, fault string) *Substrate {
	t.Helper()
	s, err := open(t.Context(), &statedir.Dir{Root: filepath.Join(b.dir, "home")}, Options{
		Jailer: b.script(t, "jailer-"+fault, sayJailer),
		Binary: b.script(t, "firecracker-"+fault,
			fmt.Sprintf("STANDIN='%s' STANDIN_LOG='%s' exec '%s' \"$@\"", fault, b.log,
				standin(t))),
		Progress: func(what string) {
			b.telling.Lock()
			defer b.telling.Unlock()
			b.told = append(b.told, what)
		}})
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	s.mayOpen = func() error { return nil }
	s.jailer, s.wall = "", Jail{Wall: noWall}
	return s
}

// sayJailer is a jailer that does nothing.
const sayJailer = `[ "$1" != --version ] || echo Jailer v1.17.0`

func (b *bench) script(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(b.dir, strings.NewReplacer(":", "-", "/", "-").Replace(name))
	check(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	return path
}

func (b *bench) file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(b.dir, name)
	check(t, os.WriteFile(path, []byte(text), 0o444))
	return path
}

// slot creates an image of the size of a slot.
func (b *bench) slot(t testing.TB, name string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(b.dir, name)
	check(t, os.WriteFile(path, []byte("image "+name+"\n"), 0o600))
	check(t, os.Truncate(path, substrate.SlotSize))
	check(t, os.Chmod(path, mode))
	return path
}

func (b *bench) machine(t testing.TB) substrate.Machine {
	t.Helper()
	digest := func(s string) turnstone.Digest { return turnstone.DigestBytes([]byte(s)) }
	return substrate.Machine{
		Kernel: standin(t), KernelDigest: digest("kernel"), // any ELF file
		Initramfs: b.file(t, "init.cpio", "initramfs\n"), InitDigest: digest("init"),
		Root: b.file(t, "root.erofs", "template\n"), RootDigest: digest("root"),
		Shape: turnstone.Shape{CPUs: 1, Memory: 16 << 20, Disk: 16 << 20},
	}
}

// A noted line is a line of the stand-in's log.
type noted struct {
	Method, Path, Body string
	Drive, Head        string
	Size               int64
	Writable           bool
	Jailer             []string
	PID                int
}

// notes reads a stand-in's log.
func notes(t testing.TB, path string) []noted {
	t.Helper()
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	check(t, err)
	defer func() { _ = f.Close() }()
	var all []noted
	for in := bufio.NewScanner(f); in.Scan(); {
		var n noted
		check(t, json.Unmarshal(in.Bytes(), &n))
		all = append(all, n)
	}
	return all
}

// requests returns the requests in the notes, without the requests for its state.
func requests(all []noted) (list []string) {
	for _, n := range all {
		if n.Method != "" && n.Method != "GET" {
			list = append(list, n.Method+" "+n.Path)
		}
	}
	return list
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
}

const limit = time.Minute

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// speak runs a command by the agent behind a machine's channel, and ends the link.
func speak(t testing.TB, vm substrate.Sandbox) {
	t.Helper()
	if vm.(*machine).wall != noWall {
		echo(t, vm)
		return
	}
	port := wire.NewPort(vm.Agent(), true)
	link, err := port.Link()
	check(t, err)
	stream, err := link.Open()
	check(t, err)
	client := wire.NewClient(stream)
	defer func() { _ = vm.Close(); _ = client.Close(); _ = port.Close() }()
	ctx := within(t)
	v, err := client.SandboxGetVersion(ctx)
	if err != nil || !strings.HasPrefix(v.Product, "turn-agent/") {
		t.Fatalf("the agent says %+v, %v (machine: %v)", v, err, vm.Err())
	}
	var out bytes.Buffer
	if _, err := client.Start(ctx, wire.ProcessStartParams{Argv: []string{"echo", "hello"}},
		wire.Stdio{Out: &out}); err != nil || out.String() != "hello\n" {
		t.Fatalf("the agent's process says %q, %v", out.String(), err)
	}
}

// echo is speak for a jail, in which no agent works.
func echo(t testing.TB, vm substrate.Sandbox) {
	t.Helper()
	_, err := vm.Agent().Write([]byte("hello"))
	check(t, err)
	back := make([]byte, 5)
	if _, err := io.ReadFull(vm.Agent(), back); err != nil || string(back) != "hello" {
		t.Fatalf("it sends back %q, %v (machine: %v)", back, err, vm.Err())
	}
	check(t, vm.Close())
}

// nothingLeft checks that no cell is left, and no process that was started for a cell.
func (b *bench) nothingLeft(t testing.TB) {
	t.Helper()
	if entries, _ := os.ReadDir(b.s.home.Path(cellsDir)); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
	for until := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		left := processes(t, b.dir)
		if len(left) == 0 {
			return
		}
		if time.Now().After(until) {
			t.Errorf("processes are left: %v", left)
			return
		}
	}
}

// processes returns the processes whose working directory or root is below dir.
func processes(t testing.TB, dir string) (found []string) {
	t.Helper()
	all, err := os.ReadDir("/proc")
	check(t, err)
	for _, e := range all {
		if pid, err := strconv.Atoi(e.Name()); err != nil || pid == os.Getpid() {
			continue
		}
		cwd, _ := os.Readlink("/proc/" + e.Name() + "/cwd")
		if strings.HasPrefix(cwd, dir+"/home/"+cellsDir) {
			found = append(found, e.Name()+" "+cwd)
		}
	}
	return found
}

// onDisk returns a file's disk usage, in bytes.
func onDisk(t testing.TB, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	check(t, syscall.Stat(path, &st))
	return st.Blocks * 512
}
