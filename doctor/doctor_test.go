package doctor

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/substrate/qemu"
)

// machineOf returns a checker of a made-up machine that has the files given.
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
	return &checker{home: &home.Home{Dir: t.TempDir()}, root: root, uid: uid}
}

func TestCheckNamesEverything(t *testing.T) {
	found := Check(t.Context(), &home.Home{Dir: t.TempDir()})
	seen := map[string]bool{}
	for _, f := range found {
		if seen[f.Name] {
			t.Errorf("%s is found twice", f.Name)
		}
		seen[f.Name] = true
		if f.Status != OK && f.Status != Warn && f.Status != Fail {
			t.Errorf("%s: status %q", f.Name, f.Status)
		}
		if f.Detail == "" || strings.Contains(f.Detail, "\n") {
			t.Errorf("%s: detail %q is not one line", f.Name, f.Detail)
		}
		if f.Status == OK && f.Fix != "" {
			t.Errorf("%s is fine, and has the fix %q", f.Name, f.Fix)
		}
	}
	for _, name := range []string{"platform", "qemu", "disk", "memory", "kernel", "templates", "snapshots", "mmdebstrap", "newuidmap", "mke2fs"} {
		if !seen[name] {
			t.Errorf("nothing is said of %s", name)
		}
	}
}

func TestUsable(t *testing.T) {
	if !Usable([]Finding{{Status: OK}, {Status: Warn}}) || Usable([]Finding{{Status: OK}, {Status: Fail}}) {
		t.Error("only a failure means that nothing can run")
	}
}

func TestKVM(t *testing.T) {
	there := map[string]string{"dev/kvm": ""}
	for _, tc := range []struct {
		name    string
		files   map[string]string
		verdict qemu.Verdict
		status  Status
		detail  string
		fix     string
	}{
		{"works", there, qemu.Verdict{Usable: true, Proven: true}, OK, "a guest runs under it", ""},
		{"no guest starts", there, qemu.Verdict{Proven: true, Reason: "emulation failure"}, Warn, "emulation failure", ""},
		{"root's alone", there, qemu.Verdict{Denied: true, Reason: "permission denied"}, Warn, "may not be opened", "sudo groupadd -rf kvm"},
		{"not tried", there, qemu.Verdict{Reason: "not proven yet"}, Warn, "not tried yet", "turn exec"},
		{"no device", nil, qemu.Verdict{}, Warn, "there is no /dev/kvm", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := machineOf(t, 1000, tc.files).kvm(tc.verdict)[0]
			if f.Status != tc.status || !strings.Contains(f.Detail, tc.detail) || !strings.HasPrefix(f.Fix, tc.fix) || (f.Fix == "") != (tc.fix == "") {
				t.Errorf("got %+v", f)
			}
		})
	}
}

func TestKVMPermission(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may open everything")
	}
	c := machineOf(t, os.Getuid(), map[string]string{"dev/kvm": ""})
	if err := os.Chmod(filepath.Join(c.root, "dev/kvm"), 0); err != nil {
		t.Fatal(err)
	}
	if f := c.kvm(qemu.Verdict{})[0]; f.Status != Warn || !strings.Contains(f.Fix, "usermod -aG kvm") {
		t.Errorf("got %+v", f)
	}
}

func TestSubIDs(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		status     Status
	}{
		{"by number", "12345:100000:65536\n", OK},
		{"of somebody else", "other:100000:65536\n", Fail},
		{"too few", "12345:100000:1000\n", Fail},
		{"nonsense", "12345\n:::\n12345:x:y\n", Fail},
		{"empty", "", Fail},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := machineOf(t, 12345, map[string]string{"etc/subuid": tc.file}).subIDs("subuid", Fail)
			if f.Status != tc.status {
				t.Errorf("got %+v", f)
			}
			if f.Status != OK && (!strings.HasPrefix(f.Fix, "sudo usermod --add-subuids 1") || !strings.HasSuffix(f.Fix, " '12345'")) {
				t.Errorf("fix %q", f.Fix)
			}
		})
	}
	// The range that is proposed is nobody else's.
	f := machineOf(t, 12345, map[string]string{"etc/subuid": "a:100000:65536\nb:165536:65536\n"}).subIDs("subuid", Fail)
	if !strings.Contains(f.Fix, "231072-296607") {
		t.Errorf("fix %q", f.Fix)
	}
}

func TestProgram(t *testing.T) {
	t.Setenv("PATH", "/usr/bin")
	c := machineOf(t, 1000, map[string]string{"usr/sbin/mke2fs": "#!/bin/sh\n"})
	if f := c.program("mke2fs", "e2fsprogs", Fail); f.Status != OK || f.Fix != "" {
		t.Errorf("a program in /usr/sbin is not found: %+v", f)
	}
	if f := c.program("mmdebstrap", "mmdebstrap", Fail); f.Status != Fail || !strings.HasSuffix(f.Fix, "-y mmdebstrap") {
		t.Errorf("got %+v", f)
	}
}

func TestMemory(t *testing.T) {
	for kib, want := range map[int64]Status{8 << 20: OK, 1 << 20: Warn, 100 << 10: Fail} {
		c := machineOf(t, 0, map[string]string{"proc/meminfo": "MemTotal: 1 kB\nMemAvailable:   " + strconv.FormatInt(kib, 10) + " kB\n"})
		if f := c.memory(t.Context())[0]; f.Status != want {
			t.Errorf("%d KiB: got %+v, want %s", kib, f, want)
		}
	}
	if f := machineOf(t, 0, map[string]string{"proc/meminfo": "x"}).memory(t.Context())[0]; f.Status != Warn {
		t.Errorf("got %+v", f)
	}
}

func TestGrade(t *testing.T) {
	for have, want := range map[turnstone.Bytes]Status{0: Fail, diskNeeded - 1: Fail, diskNeeded: Warn, diskWanted: OK} {
		if got := grade(have, diskNeeded, diskWanted); got != want {
			t.Errorf("%s: got %s, want %s", have, got, want)
		}
	}
}

func TestKernelOverride(t *testing.T) {
	c := machineOf(t, 0, nil)
	t.Setenv("TURN_KERNEL", filepath.Join(c.root, "none"))
	if f := c.kernel(t.Context())[0]; f.Status != Fail || f.Fix != "unset TURN_KERNEL" {
		t.Errorf("got %+v", f)
	}
	t.Setenv("TURN_KERNEL", "/proc/self/exe")
	if f := c.kernel(t.Context())[0]; f.Status != OK {
		t.Errorf("got %+v", f)
	}
}

func TestQuote(t *testing.T) {
	if got, want := quote("it's $HOME"), `'it'\''s $HOME'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A check that is told to stop does.
func TestCheckCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	Check(ctx, &home.Home{Dir: t.TempDir()})
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("took %s", took)
	}
}
