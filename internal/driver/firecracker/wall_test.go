package firecracker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc64"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// jailed gives the bench a jailer. Creating a jail needs root.
func (b *bench) jailed(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a jail is made by root")
	}
	host := owners(t)
	t.Cleanup(func() {
		if now := owners(t); now != host {
			t.Errorf("the host's own folders were changed from %s to %s", host, now)
		}
	})
	program := standin(t)
	jailer := filepath.Join(b.dir, "jailer-standin")
	check(t, os.Symlink(program, jailer))
	b.s.binary = program
	b.s.jailer, b.s.wall.Wall = b.script(t, "jailer",
		fmt.Sprintf("STANDIN='' STANDIN_LOG=/out/log exec '%s' \"$@\"", jailer)), byJailer
	if err := exec.Command("unshare", "-m", "true").Run(); err != nil {
		t.Skipf("no mount namespace can be made: %v", err)
	}
}

// imprisoned gives the bench a jail without a jailer, which needs no rights.
func (b *bench) imprisoned(t *testing.T) {
	t.Helper()
	if why := host.NoUserNamespaces(); why != "" && os.Geteuid() != 0 {
		t.Skip("users may not create user namespaces here: " + why)
	}
	b.s.binary = standin(t)
	if os.Geteuid() == 0 {
		public(t, b.s.binary)
	}
	var err error
	if b.s.wall, err = b.s.findWall(t.Context()); err != nil || b.s.wall.Wall != jailed {
		t.Fatalf("%+v, %v", b.s.wall, err)
	}
}

// walls runs a test for each way to confine Firecracker.
func walls(t *testing.T, test func(t *testing.T, b *bench)) {
	for w, confine := range map[host.Wall]func(*bench,
		*testing.T){byJailer: (*bench).jailed, jailed: (*bench).imprisoned} {
		t.Run(string(w), func(t *testing.T) {
			b := newBench(t, "")
			confine(b, t)
			test(t, b)
		})
	}
}

// owners returns the owners of the host's folders that a jail has, too.
func owners(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, path := range []string{"/", "/dev", "/run"} {
		var st unix.Stat_t
		check(t, unix.Stat(path, &st))
		fmt.Fprintf(&all, "%s %d:%d %o; ", path, st.Uid, st.Gid, st.Mode)
	}
	return all.String()
}

func TestJail(t *testing.T) { walls(t, testJail) }

func testJail(t *testing.T, b *bench) {
	m := b.m
	m.Layers = []string{b.slot(t, "one", 0o600), b.slot(t, "two", 0o444)}
	layer, err := os.Stat(m.Layers[0])
	check(t, err)
	vm, err := b.s.Restore(within(t), m)
	check(t, err)
	defer func() { _ = vm.Close() }()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	if bytes.Contains(mounts, []byte(b.dir)) {
		t.Errorf("the host sees the jail's mounts:\n%s", mounts)
	}
	b.checkDrives(t, notes(t, vm.(*machine).cell.out("log")), m, true)
	b.checkJailed(t, vm.(*machine))
	if now, err := os.Stat(m.Layers[0]); err != nil || !os.SameFile(layer, now) ||
		now.Mode() != layer.Mode() || !now.ModTime().Equal(layer.ModTime()) {
		t.Errorf("the layer's image was touched: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "vm")
	check(t, vm.(substrate.Snapshotter).Snapshot(within(t), dir))
	clone, err := b.s.RestoreFrom(within(t), b.m, dir)
	check(t, err)
	speak(t, clone)
	speak(t, vm)
	if !strings.Contains(b.s.Isolation(), "jailed") {
		t.Error(b.s.Isolation())
	}
	b.nothingLeft(t)
}

// checkJailed checks the process of a machine's Firecracker.
func (b *bench) checkJailed(t *testing.T, m *machine) {
	t.Helper()
	pid := strconv.Itoa(firecrackerOf(t, m))
	status, err := os.ReadFile("/proc/" + pid + "/status")
	check(t, err)
	wanted := []string{"Uid:" + strings.Repeat("\t"+strconv.Itoa(int(m.owner)), 4),
		"CapEff:\t0000000000000000"}
	if os.Geteuid() == 0 {
		wanted = append(wanted, "Gid:\t65534\t65534\t65534\t65534", "Groups:\t \n")
	}
	spaces := []string{"mnt", "pid", "ipc"}
	if m.wall == jailed {
		wanted = append(wanted, "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2")
		spaces = append(spaces, "user", "net", "uts", "cgroup")
	}
	for _, want := range wanted {
		if !strings.Contains(string(status), want) {
			t.Errorf("its status has not got %q:\n%s", want, status)
		}
	}
	seen, err := os.ReadDir("/proc/" + pid + "/root")
	check(t, err)
	var names []string
	for _, e := range seen {
		names = append(names, e.Name())
	}
	for _, secret := range []string{"/etc", "/proc", "/sys", "/var", b.dir} {
		if _, err := os.Stat("/proc/" + pid + "/root" + secret); err == nil {
			t.Errorf("it sees %s: %v", secret, names)
		}
	}
	for _, ns := range spaces {
		ours, err1 := os.Readlink("/proc/self/ns/" + ns)
		theirs, err2 := os.Readlink("/proc/" + pid + "/ns/" + ns)
		if err := errors.Join(err1, err2); err != nil || ours == theirs {
			t.Errorf("namespace %s: %s and %s, %v", ns, ours, theirs, err)
		}
	}
}

func TestJailedHome(t *testing.T) { walls(t, testJailedHome) }

func testJailedHome(t *testing.T, b *bench) {
	m := b.m
	m.Home = b.slot(t, "homedisk", 0o600)
	for range 2 {
		vm, err := b.s.Restore(within(t), m)
		check(t, err)
		b.checkDrives(t, notes(t, vm.(*machine).cell.out("log")), m, true)
		check(t, vm.Close())
	}
	b.nothingLeft(t)
}

func TestJailedKilledHolder(t *testing.T) {
	walls(t, func(t *testing.T, b *bench) {
		b.killed(t)
		sweepCells(b.s.home)
		b.nothingLeft(t)
	})
}

func TestJailFails(t *testing.T) {
	b := newBench(t, "")
	b.jailed(t)
	good := b.s.jailer
	for name, tc := range map[string]struct {
		script, text string
		kind         turnstone.Kind
	}{
		"refuses": {"echo 'Error: it is late' >&2; exit 1", "it is late", turnstone.KindDead},
		"mute":    {"exit 3", "exit status 3", turnstone.KindDead},
	} {
		b.s.jailer = b.script(t, name, tc.script)
		if _, err := b.s.Boot(within(t), b.m); turnstone.KindOf(err) != tc.kind ||
			!strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %s, %v", name, turnstone.KindOf(err), err)
		}
	}
	b.s.jailer = good
	m := b.m
	m.Initramfs = "/none"
	if _, err := b.s.Boot(within(t), m); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "initrd") {
		t.Errorf("got %v", err)
	}
	b.nothingLeft(t)
}

func TestCgroupLimits(t *testing.T) {
	dir := t.TempDir()
	expect := func(what, args, parent string) {
		t.Helper()
		if got, group := cgroupLimits(2, dir); strings.Join(got, " ") != args || group != parent {
			t.Errorf("%s: %q in %q", what, got, group)
		}
	}
	expect("without control groups", "", "")
	check(t, os.Mkdir(filepath.Join(dir, "pids"), 0o755))
	expect("without version 1's processes", "", "")
	check(t, os.WriteFile(filepath.Join(dir, "pids", "cgroup.procs"), nil, 0o644))
	expect("version 1", "--cgroup-version 1 --parent-cgroup turnstone --cgroup pids.max=18",
		filepath.Join(dir, "pids", "turnstone"))
	path := filepath.Join(dir, "cgroup.controllers")
	check(t, os.WriteFile(path, []byte("cpu memory\n"), 0o644))
	expect("version 2 without processes", "", "")
	check(t, os.WriteFile(path, []byte("cpu memory pids\n"), 0o644))
	expect("version 2", "--cgroup-version 2 --parent-cgroup turnstone --cgroup pids.max=18",
		filepath.Join(dir, "turnstone"))
}

// public makes sure that nobody may reach the file at path, because a root's jail shows it.
func public(t *testing.T, path string) {
	t.Helper()
	for dir := path; dir != "/"; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm()&0o001 == 0 {
			t.Skipf("nobody may not reach %s: %v", dir, err)
		}
	}
}

// TestFindWall checks that a jailed Firecracker decides whether there is a jail, that a good result
// is remembered, and that root without a jail is rejected.
func TestFindWall(t *testing.T) {
	b := newBench(t, "")
	b.imprisoned(t)
	b.nothingLeft(t)
	cache := b.s.home.Path("cache", "firecracker-jail.json")
	first, err := os.ReadFile(cache)
	check(t, err)
	again, err := b.s.findWall(t.Context())
	if err != nil || again != b.s.wall {
		t.Errorf("%+v, %v", again, err)
	}
	// A script cannot be jailed, because no jail has its interpreter.
	b.s.binary = b.script(t, "script", "exit 1")
	none, err := b.s.findWall(t.Context())
	if err != nil || none.Confined() || !strings.Contains(none.Reason, "its jail: ") {
		t.Errorf("%+v, %v", none, err)
	}
	if now, err := os.ReadFile(cache); err != nil || bytes.Equal(now, first) {
		t.Errorf("%s, %v", now, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.s.version = "another"
	if _, err := b.s.findWall(ctx); turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Errorf("got %v", err)
	}
	b.nothingLeft(t)
}

// TestConfine checks that a jailer of the same release is used, and that without a jailer there is
// another jail, or root's Firecracker does not run.
func TestConfine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("others have no jailer")
	}
	b := newBench(t, "")
	public(t, standin(t))
	t.Setenv("PATH", t.TempDir())
	h := &statedir.Dir{Root: t.TempDir()}
	s, err := open(t.Context(), h, Options{Binary: standin(t)})
	check(t, err)
	if s.jailer != "" || s.Jail().Wall != jailed {
		t.Errorf("jailer %q, %+v", s.jailer, s.Jail())
	}
	s, err = open(t.Context(), h, Options{Binary: standin(t), Jailer: b.script(t, "another",
		sayJailer)})
	check(t, err)
	if s.Jail().Wall != byJailer {
		t.Errorf("%+v", s.Jail())
	}
	t.Setenv("PATH", "/usr/bin:/bin")
	_, err = open(t.Context(), h,
		Options{Binary: b.script(t, "firecracker", "echo Firecracker v1.17.0")})
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "no other jail can be made") ||
		!strings.Contains(turnstone.HintOf(err), "jailer") {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
}

// TestHostileState checks that a machine's state, which may come with an imported session and names
// the files that Firecracker opens, opens no other file of the host in a jail.
func TestHostileState(t *testing.T) {
	walls(t, func(t *testing.T, b *bench) {
		victim := b.file(t, "victim", "the host's file has more than a sector: "+strings.Repeat("x",
			1024))
		check(t, os.Chmod(victim, 0o666)) // anyone who reaches it may write it
		for _, path := range []string{victim, "../../" + filepath.Base(victim),
			"../../../../.." + victim, "/proc/self/root" + victim, "/proc/1/root" + victim} {
			dir := b.hostile(t, path)
			vm, err := b.s.RestoreFrom(within(t), b.m, dir)
			if err == nil {
				_ = vm.Close()
			}
			if turnstone.KindOf(err) != turnstone.KindDead ||
				!strings.Contains(err.Error(), "no such file") {
				t.Errorf("%s: %s, %v", path, turnstone.KindOf(err), err)
			}
		}
		if text, err := os.ReadFile(victim); err != nil ||
			!strings.HasPrefix(string(text), "the host's") ||
			strings.Contains(string(text), "\x00") {
			t.Errorf("the host's file has %q, %v", text, err)
		}
		b.nothingLeft(t)
	})
	// Without a jail the file is opened, which is why no machine is kept there.
	b := newBench(t, "")
	victim := b.file(t, "victim", strings.Repeat("x", 1024))
	check(t, os.Chmod(victim, 0o666))
	vm, err := b.s.RestoreFrom(within(t), b.m, b.hostile(t, victim))
	check(t, err)
	check(t, vm.Close())
	if text, _ := os.ReadFile(victim); !bytes.Contains(text, []byte("\x00")) ||
		b.s.Abilities().Keep == nil {
		t.Errorf("it has %q; %v", text, b.s.Abilities().Keep)
	}
}

// hostile takes a snapshot of a running machine whose scratch disk is the file at path.
func (b *bench) hostile(t *testing.T, path string) (dir string) {
	t.Helper()
	vm, err := b.s.Restore(within(t), b.m)
	check(t, err)
	dir = filepath.Join(t.TempDir(), "vm")
	check(t, vm.(substrate.Snapshotter).Snapshot(within(t), dir))
	check(t, vm.Close())
	state, manifest := filepath.Join(dir, stateFile), filepath.Join(dir, manifestFile)
	was, err := os.ReadFile(state)
	check(t, err)
	text, _, _ := bytes.Cut(was, []byte("\n"))
	text = bytes.ReplaceAll(text, []byte(`"path_on_host":"scratch"`),
		fmt.Appendf(nil, `"path_on_host":%q`, path))
	now := fmt.Appendf(text, "\n%d", crc64.Checksum(text, crc64.MakeTable(crc64.ISO)))
	about, err := os.ReadFile(manifest)
	check(t, err)
	signed := bytes.ReplaceAll(about, []byte(turnstone.DigestBytes(was)),
		[]byte(turnstone.DigestBytes(now)))
	if bytes.Equal(now, was) || bytes.Equal(signed, about) {
		t.Fatalf("nothing is forged:\n%s\n%s", was, about)
	}
	for name, b := range map[string][]byte{state: now, manifest: signed} {
		check(t, errors.Join(os.Chmod(name, 0o600), os.WriteFile(name, b, 0o644),
			os.Chmod(name, 0o444)))
	}
	return dir
}
