package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/turntest"
)

// TestConfined checks a running sandbox's processes from the host: whoever starts them, and in
// however few steps, they end up without rights. This includes every thread of gVisor's kernel and
// the processes that run the sandbox's code, for root and for others.
//
//testrun:user
func TestConfined(t *testing.T) {
	h := turntest.Home(t)
	v := started(t, newSubstrate(t, h), testMachine(t, h))
	kernel, err := processID(v.dir)
	check(t, err)
	all := append([]int{kernel}, descendants(kernel)...)
	if len(all) < 2 {
		t.Fatalf("process %d has no children: nothing runs the sandbox's code", kernel)
	}
	for _, pid := range all {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		check(t, err)
		for _, thread := range threads {
			confined(t, fmt.Sprintf("/proc/%d/task/%s", pid, thread.Name()))
		}
	}
	emptyRoot(t, kernel)
	noFolders(t, kernel)
}

// confined checks a thread's rights. A thread that ends meanwhile is ignored.
func confined(t *testing.T, dir string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return
	}
	status := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		status[name] = strings.Join(strings.Fields(value), " ")
	}
	uid := fmt.Sprint(os.Getuid())
	if !rootless() {
		uid = "65534"
	}
	want := map[string]string{"Uid": strings.Join([]string{uid, uid, uid, uid}, " "),
		"Seccomp": "2", "NoNewPrivs": "1"}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		want[set] = "0000000000000000"
	}
	for name, value := range want {
		if status[name] != value {
			t.Errorf("%s (%s): %s is %q, not %q", dir, status["Name"], name, status[name], value)
		}
	}
	for _, space := range []string{"user", "mnt", "pid", "ipc", "uts", "net"} {
		ours, err := os.Readlink("/proc/self/ns/" + space)
		check(t, err)
		if theirs, err := os.Readlink(filepath.Join(dir, "ns", space)); err == nil &&
			theirs == ours {
			t.Errorf("%s: its %s namespace is the host's", dir, space)
		}
	}
}

// emptyRoot checks that a process sees none of the host's files: its root contains a copy of the
// time zone and an empty /proc, is read-only, and has no mounts below it.
func emptyRoot(t *testing.T, pid int) {
	t.Helper()
	root := fmt.Sprintf("/proc/%d/root", pid)
	var names []string
	entries, err := os.ReadDir(root)
	check(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, []string{"etc", "proc"}) {
		t.Errorf("its root has %q", names)
	}
	below, _ := filepath.Glob(root + "/proc/*")
	etc, _ := filepath.Glob(root + "/etc/*")
	if len(below) != 0 || len(etc) > 1 {
		t.Errorf("its root has %q and %q", below, etc)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	check(t, err)
	if lines := strings.Split(strings.TrimSpace(string(mounts)), "\n"); len(lines) != 1 ||
		!strings.Contains(lines[0], " / / ro,") {
		t.Errorf("its mounts are\n%s", mounts)
	}
}

// noFolders checks that a process has no open folder, from which files could be opened.
func noFolders(t *testing.T, pid int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	check(t, err)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if fi, err := os.Stat(path); err == nil && fi.IsDir() {
			link, _ := os.Readlink(path)
			t.Errorf("descriptor %s is the folder %s", e.Name(), link)
		}
	}
}
