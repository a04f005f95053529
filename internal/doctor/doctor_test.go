package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/driver/firecracker"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/driver/qemu"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// machineOf returns a checker of a fake machine with the given files.
func machineOf(t *testing.T, uid int, files map[string]string) *checker {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &checker{home: &statedir.Dir{Root: t.TempDir()}, root: root, uid: uid}
}

func TestCheckNamesEverything(t *testing.T) {
	found := Check(t.Context(), &statedir.Dir{Root: t.TempDir()},
		Options{Substrate: os.Getenv(substrateVar)})
	seen := map[string]bool{}
	for _, f := range found {
		if seen[f.Name] {
			t.Errorf("%s is found twice", f.Name)
		}
		seen[f.Name] = true
		if f.Status != StatusOK && f.Status != StatusWarn && f.Status != StatusFail {
			t.Errorf("%s: status %q", f.Name, f.Status)
		}
		if f.Detail == "" || strings.Contains(f.Detail, "\n") {
			t.Errorf("%s: detail %q is not one line", f.Name, f.Detail)
		}
		if f.Status == StatusOK && f.Fix != "" {
			t.Errorf("%s is fine, and has the fix %q", f.Name, f.Fix)
		}
	}
	lines := map[string]Finding{}
	for _, f := range found {
		lines[f.Name] = f
	}
	if strings.HasPrefix(lines["substrate"].Detail,
		"gvisor") != (lines["gvisor"].Status == StatusOK &&
		!strings.Contains(lines["substrate"].Detail, "microvm (KVM")) &&
		os.Getenv(substrateVar) == "" {
		t.Errorf("gVisor is chosen, and cannot be used, or the other way round: %+v, %+v",
			lines["substrate"], lines["gvisor"])
	}
	for _, name := range []string{"platform", "firecracker", "qemu", "gvisor", "substrate", "tier seeded",
		"tier strict", "disk", "memory", "kernel", "templates", "snapshots", "mmdebstrap", "newuidmap", "mke2fs"} {
		if !seen[name] {
			t.Errorf("nothing is said of %s", name)
		}
	}
}

func TestSnapshotsOfAllSubstrates(t *testing.T) {
	c := machineOf(t, 0, nil)
	for n, name := range []string{"a/manifest.json", "gvisor-b/sandbox.json"} {
		path := c.home.Path("snapshots", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if f := c.snapshots(t.Context())[0]; !strings.HasPrefix(f.Detail,
			strconv.Itoa(n+1)+" snapshot") {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestUsable(t *testing.T) {
	if !Usable([]Finding{{Status: StatusOK}, {Status: StatusWarn}}) ||
		Usable([]Finding{{Status: StatusOK}, {Status: StatusFail}}) {
		t.Error("only a failure means that nothing can run")
	}
}

func TestKVM(t *testing.T) {
	there := map[string]string{"dev/kvm": ""}
	for _, tc := range []struct {
		name    string
		files   map[string]string
		verdict kvm.Verdict
		status  Status
		detail  string
		fix     string
	}{
		{"works", there, kvm.Verdict{Usable: true, Proven: true}, StatusOK,
			"a guest runs under it", ""},
		{"works, with a module", map[string]string{"dev/kvm": "", "sys/module/kvm_pvm/x": ""},
			kvm.Verdict{Usable: true, Proven: true, CPU: "host"}, StatusOK,
			"kvm_pvm: a guest runs under it; CPU model host", ""},
		{"works with this kernel", there, kvm.Verdict{Usable: true, Proven: true, Emulated: true,
			CPU: "host,-x", Why: "failed to set MSR 0x1"}, StatusOK,
			"a guest runs under it only with this kernel (TURN_KERNEL=/srv/vmlinux), not with " +
				"Debian's: its guests are emulated, and xrstor or cmpxchg16b is not; " +
				"CPU model host,-x because QEMU rejects the host's: failed to set MSR 0x1", ""},
		{"works with no stock kernel", there,
			kvm.Verdict{Proven: true, Emulated: true, Known: true, Reason: "emulated"}, StatusWarn,
			"; `turn doctor --kernel FILE` tries another kernel", ""},
		{"turns away later", there,
			kvm.Verdict{Known: true,
				Reason: "no virtual machine can be made: device or resource busy"}, StatusWarn,
			"cannot be used: no virtual machine", ""},
		{"no guest starts", there, kvm.Verdict{Proven: true, Reason: "emulation failure"},
			StatusWarn, "emulation failure", ""},
		{"root's alone", there, kvm.Verdict{Denied: true, Reason: "permission denied"}, StatusWarn,
			"users that run QEMU may not open /dev/kvm", "sudo setfacl"},
		{"not tried", there, kvm.Verdict{Reason: "not proven yet"}, StatusWarn, "not tried yet",
			"turn exec"},
		{"no device", nil, kvm.Verdict{}, StatusWarn, "/dev/kvm is missing", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := machineOf(t, 1000, tc.files)
			c.opt.Kernel = "/srv/vmlinux"
			f := c.kvm(untriedScene(tc.verdict))[0]
			if f.Status != tc.status || !strings.Contains(f.Detail, tc.detail) ||
				!strings.HasPrefix(f.Fix, tc.fix) || (f.Fix == "") != (tc.fix == "") {
				t.Errorf("got %+v", f)
			}
		})
	}
}

//testrun:user
func TestKVMPermission(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may open everything")
	}
	c := machineOf(t, os.Getuid(), map[string]string{"dev/kvm": ""})
	if err := os.Chmod(filepath.Join(c.root, "dev/kvm"), 0); err != nil {
		t.Fatal(err)
	}
	if f := c.kvm(untriedScene(kvm.Verdict{}))[0]; f.Status != StatusWarn ||
		!strings.Contains(f.Fix, "setfacl") {
		t.Errorf("got %+v", f)
	}
}

//testrun:user
func TestSubIDs(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		status     Status
	}{
		{"by number", "12345:100000:65536\n", StatusOK},
		{"of somebody else", "other:100000:65536\n", StatusFail},
		{"too few", "12345:100000:1000\n", StatusFail},
		{"nonsense", "12345\n:::\n12345:x:y\n", StatusFail},
		{"empty", "", StatusFail},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := machineOf(t, 12345, map[string]string{"etc/subuid": tc.file}).subIDs(
				"subuid", StatusFail)
			if f.Status != tc.status {
				t.Errorf("got %+v", f)
			}
			if f.Status != StatusOK && (!strings.HasPrefix(f.Fix, "sudo usermod --add-subuids 1") ||
				!strings.HasSuffix(f.Fix, " '12345'")) {
				t.Errorf("fix %q", f.Fix)
			}
		})
	}
	// The proposed range belongs to no other user.
	f := machineOf(t, 12345,
		map[string]string{"etc/subuid": "a:100000:65536\nb:165536:65536\n"}).subIDs(
		"subuid", StatusFail)
	if !strings.Contains(f.Fix, "231072-296607") {
		t.Errorf("fix %q", f.Fix)
	}
}

func TestProgram(t *testing.T) {
	t.Setenv("PATH", "/usr/bin")
	c := machineOf(t, 1000, map[string]string{"usr/sbin/mke2fs": "#!/bin/sh\n"})
	if f := c.program("mke2fs", "e2fsprogs", StatusFail); f.Status != StatusOK || f.Fix != "" {
		t.Errorf("a program in /usr/sbin is not found: %+v", f)
	}
	if f := c.program("mmdebstrap", "mmdebstrap", StatusFail); f.Status != StatusFail ||
		!strings.HasSuffix(f.Fix, "-y mmdebstrap") {
		t.Errorf("got %+v", f)
	}
}

func TestMemory(t *testing.T) {
	for kib, want := range map[int64]Status{8 << 20: StatusOK, 1 << 20: StatusWarn,
		100 << 10: StatusFail} {
		c := machineOf(t, 0, map[string]string{"proc/meminfo": "MemTotal: 1 kB\nMemAvailable:   " +
			strconv.FormatInt(kib, 10) + " kB\n"})
		if f := c.memory(t.Context())[0]; f.Status != want {
			t.Errorf("%d KiB: got %+v, want %s", kib, f, want)
		}
	}
	f := machineOf(t, 0, map[string]string{"proc/meminfo": "x"}).memory(t.Context())[0]
	if f.Status != StatusWarn {
		t.Errorf("got %+v", f)
	}
}

func TestGrade(t *testing.T) {
	for have, want := range map[turnstone.Bytes]Status{0: StatusFail, diskNeeded - 1: StatusFail,
		diskNeeded: StatusWarn, diskWanted: StatusOK} {
		if got := grade(have, diskNeeded, diskWanted); got != want {
			t.Errorf("%s: got %s, want %s", have, got, want)
		}
	}
}

func TestKernelOverride(t *testing.T) {
	c := machineOf(t, 0, nil)
	c.opt.Kernel = filepath.Join(c.root, "none")
	if f := c.kernel(t.Context())[0]; f.Status != StatusFail || f.Fix != "unset TURN_KERNEL" {
		t.Errorf("got %+v", f)
	}
	c.opt.Kernel = "/proc/self/exe" // the image is inspected and rejected
	if f := c.kernel(t.Context())[0]; f.Status != StatusFail || f.Fix != "unset TURN_KERNEL" {
		t.Errorf("got %+v", f)
	}
	c.opt.Kernel = ""
	image := filepath.Join(t.TempDir(), "image")
	for version, want := range map[string]Status{"6.9.0-own": StatusOK, "6.1.192-tpv": StatusWarn} {
		b := make([]byte, 4096) // a bzImage whose payload has an unknown format (boot.rst)
		copy(b[0x202:], "HdrS\x0f\x02")
		b[0x1f1], b[0x20f], b[0x236], b[0x249], b[0x24c] = 1, 1, 1, 2, 8
		copy(b[0x300:], version+" (a@b)")
		if err := os.WriteFile(image, b, 0o644); err != nil {
			t.Fatal(err)
		}
		c.choice.Image = image
		f := c.kernel(t.Context())[0]
		if f.Status != want || !strings.HasPrefix(f.Detail, "config.toml: kernel = "+image) ||
			strings.Contains(f.Detail, "test kernel") != (want == StatusWarn) {
			t.Errorf("%s: %+v", version, f)
		}
	}
}

func TestQuote(t *testing.T) {
	if got, want := quote("it's $HOME"), `'it'\''s $HOME'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestCheckCanceled checks that a canceled check stops.
func TestCheckCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	Check(ctx, &statedir.Dir{Root: t.TempDir()}, Options{})
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("took %s", took)
	}
}

// A named substrate has only a name.
type named struct {
	substrate.Substrate
	name, isolation string
}

func (n named) Name() string      { return n.name }
func (n named) Isolation() string { return n.isolation }

// untriedScene is a scene in which the first turn tries QEMU's KVM, with verdict v.
func untriedScene(v kvm.Verdict) scene {
	return scene{asked: "auto", qemu: qemuScene{kvm: v},
		decision: driver.Decision{
			Trials: []driver.Trial{{Name: "qemu", How: "KVM", Err: driver.ErrUnproven}}}}
}

// TestAskedSubstrate checks that every turn uses the substrate of the environment, or fails with
// it.
func TestAskedSubstrate(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	c := machineOf(t, 1000, nil)
	for _, name := range []string{"qemu", "xen"} {
		c.opt.Substrate = name
		if f := chosenLine(c.look(t.Context())); f.Status != StatusFail ||
			f.Fix != "unset TURN_SUBSTRATE" ||
			!strings.Contains(f.Detail, "TURN_SUBSTRATE="+name+" is not available: ") {
			t.Errorf("%+v", f)
		}
	}
}

func TestFirecracker(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	line := func(c *checker) Finding {
		return c.firecracker(scene{asked: "auto", fc: c.lookAtFirecracker(t.Context())})
	}
	c := machineOf(t, 1000, nil)
	if f := line(c); f.Status != StatusOK || !strings.Contains(f.Detail, "not useful without KVM") {
		t.Errorf("without KVM: %+v", f)
	}
	c = machineOf(t, 1000, map[string]string{"dev/kvm": ""})
	if f := line(c); f.Status != StatusOK ||
		!strings.Contains(f.Detail, "https://github.com/firecracker-microvm/firecracker/releases") {
		t.Errorf("with KVM: %+v", f)
	}
	program := filepath.Join(t.TempDir(), "firecracker")
	err := os.WriteFile(program, []byte("#!/bin/sh\necho Firecracker v1.2.0\n"),
		0o755)
	if err != nil {
		t.Fatal(err)
	}
	c.opt.Firecracker, c.opt.Jailer = program, program
	if f := line(c); f.Status != StatusWarn || !strings.Contains(f.Detail, "1.2.0") ||
		f.Fix != "unset TURN_FIRECRACKER" {
		t.Errorf("an old one: %+v", f)
	}
	c.opt.Firecracker = "/none"
	if f := line(c); f.Status != StatusWarn || f.Fix != "unset TURN_FIRECRACKER" {
		t.Errorf("one that is not there: %+v", f)
	}
}

// TestFirecrackerWithoutJail checks that Firecracker without a jail runs turns, and that doctor
// reports the missing parts, with the reasons.
func TestFirecrackerWithoutJail(t *testing.T) {
	c := machineOf(t, 1000, nil)
	f := c.notJailed("Firecracker v1.17.0 (/firecracker)",
		firecracker.Jail{Reason: "users may make no\nuser namespaces"})
	if f.Status != StatusWarn || !strings.Contains(f.Detail, "without a jail") ||
		!strings.Contains(f.Detail, "neither kept nor resumed: users may make no user namespaces") {
		t.Errorf("%+v", f)
	}
}

// TestJailer: a fault of the jailer has a fix for the jailer, not for Firecracker.
func TestJailer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root's Firecracker is jailed")
	}
	t.Setenv("PATH", os.Getenv("PATH")) // for the scripts
	dir := t.TempDir()
	says := func(name, what string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+what+"'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	binary, dev := says("firecracker", "Firecracker v1.15.1"),
		says("dev", "Firecracker v1.17.0-dev")
	other, good, none := says("other", "Jailer v1.14.0"), says("good", "Jailer v1.15.1"),
		filepath.Join(dir, "none")
	for _, tt := range []struct {
		what                   string
		binary, jailer, beside string
		fix                    string
		names                  []string
	}{
		{"by TURN_JAILER", binary, other, "", "unset TURN_JAILER",
			[]string{"TURN_JAILER=" + other, other, "1.14.0", binary + " is Firecracker 1.15.1"}},
		{"by TURN_JAILER, which is not there", binary, none, "", "unset TURN_JAILER",
			[]string{"TURN_JAILER=" + none + ": no such file"}},
		{"beside it", binary, "", "Jailer v1.14.0", "(v=v1.15.1 ",
			[]string{filepath.Join(dir, "jailer"), "1.14.0", binary + " is Firecracker 1.15.1",
				"beside firecracker"}},
		{"beside a build of one's own", dev, "", "Jailer v1.16.1", "",
			[]string{"1.16.1", dev + " is Firecracker 1.17.0-dev", "beside firecracker"}},
		{"nowhere, and no other jail", binary, "", "", "(v=v1.15.1 ",
			[]string{"root's Firecracker is jailed", "beside firecracker"}},
		{"of the same release", binary, good, "", "",
			[]string{"Firecracker v1.15.1 (" + binary + ")"}},
	} {
		_ = os.Remove(filepath.Join(dir, "jailer"))
		if tt.beside != "" {
			says("jailer", tt.beside)
		}
		c := machineOf(t, 0, map[string]string{"dev/kvm": ""})
		c.opt.Firecracker, c.opt.Jailer = tt.binary, tt.jailer
		f := c.firecracker(scene{asked: "auto", fc: c.lookAtFirecracker(t.Context())})
		if !strings.HasPrefix(f.Fix, tt.fix) || (tt.fix == "") != (f.Fix == "") {
			t.Errorf("%s: %+v", tt.what, f)
		}
		for _, name := range tt.names {
			if !strings.Contains(f.Detail, name) {
				t.Errorf("%s: %q does not name %q", tt.what, f.Detail, name)
			}
		}
		if tt.jailer != "" && strings.Count(f.Detail, tt.jailer) > 1 {
			t.Errorf("%s: %q names the jailer twice", tt.what, f.Detail)
		}
		if f.Fix != "" && f.Fix[0] == '(' && !strings.Contains(f.Fix, "sha256sum -c") {
			t.Errorf("%s: the program is not checked: %s", tt.what, f.Fix)
		}
	}
}

func TestMissingQEMU(t *testing.T) {
	c := machineOf(t, 1000, nil)
	none := qemuScene{err: errors.New("qemu-system-x86_64 is not found")}
	for want, s := range map[Status]scene{StatusFail: {qemu: none},
		StatusWarn: {qemu: none, decision: driver.Decision{Substrate: named{name: "gvisor"}}}} {
		if f := c.qemu(s)[0]; f.Status != want || f.Fix == "" {
			t.Errorf("%s: %+v", want, f)
		}
	}
}

// TestQEMUWithoutNamespaces: turns run, and doctor reports what is missing.
//
//testrun:user
func TestQEMUWithoutNamespaces(t *testing.T) {
	c := machineOf(t, 1000, nil)
	f := c.jail("QEMU 7.2", qemu.Jail{Wall: "filter",
		Reason: "mount:\noperation not permitted"})
	if f.Status != StatusWarn ||
		!strings.Contains(f.Detail, "QEMU 7.2: runs without namespaces") ||
		!strings.HasSuffix(f.Detail, ": mount: operation not permitted") {
		t.Errorf("%+v", f)
	}
	if f := c.jail("QEMU 7.2", qemu.Jail{Wall: "namespaces"}); f.Status != StatusOK || f.Fix != "" {
		t.Errorf("%+v", f)
	}
}
