package kernelcheck

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/internal/doctor"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/guest/kernel/need"
	"turnstone.dev/turnstone/internal/statedir"
)

func TestJudge(t *testing.T) {
	config := func(text ...string) kernel.Facts {
		f := kernel.Facts{Version: "6.1.0", Config: map[string]string{}}
		for _, line := range text {
			name, value, _ := strings.Cut(line, "=")
			f.Config[name] = value
		}
		return f
	}
	modules := func(f kernel.Facts, names ...string) kernel.Facts {
		f.Modules, f.Builtin = map[string]bool{}, map[string]bool{"ext4": true}
		for _, name := range names {
			f.Modules[name] = true
		}
		return f
	}
	for _, tt := range []struct {
		what, need string
		facts      kernel.Facts
		has        map[string]bool
		presence   Presence
		source     string
		detail     string
	}{
		{"nothing is known", "erofs", kernel.Facts{}, nil, Unknown, "", ""},
		{"the configuration says y", "erofs", config("EROFS_FS=y"), nil, BuiltIn, "config", ""},
		{"the configuration says nothing", "erofs", config(), nil, Missing, "config", ""},
		{"one of two options", "seccomp", config("SECCOMP=y"), nil, Missing, "config",
			"CONFIG_SECCOMP_FILTER"},
		{"a module without a folder", "erofs", config("EROFS_FS=m"), nil, Missing, "config",
			"--kernel-modules"},
		{"a module that is not in the folder", "erofs", modules(config("EROFS_FS=m"), "ext4"), nil,
			Missing, "config", "no module erofs"},
		{"a module in the folder", "erofs", modules(config("EROFS_FS=m"), "erofs"), nil, AsModule,
			"config", ""},
		{"a module that cannot be one", "proc", modules(config("PROC_FS=m"), "proc"), nil, Missing,
			"config", ""},
		{"a folder alone", "erofs", modules(kernel.Facts{}, "erofs"), nil, AsModule, "modules", ""},
		{"modules.builtin alone", "ext4", modules(kernel.Facts{}), nil, BuiltIn, "modules", ""},
		{"the boot alone", "erofs", kernel.Facts{}, map[string]bool{"erofs": true}, Present,
			"boot", ""},
		{"the boot wins over the configuration", "erofs", config("EROFS_FS=y"),
			map[string]bool{"erofs": false}, Missing, "boot", ""},
		{"the boot wins over a folder that was not given", "erofs", config("EROFS_FS=m"),
			map[string]bool{"erofs": true}, Present, "boot", ""},
		{"a module that did not load", "erofs", modules(config("EROFS_FS=m"), "erofs"),
			map[string]bool{"erofs": false}, Missing, "boot", "was not loaded"},
		{"an old version", "cgroup-kill", kernel.Facts{Version: "5.10.0-8-amd64"}, nil, Missing,
			"version", "5.10.0"},
		{"a new version", "cgroup-kill", kernel.Facts{Version: "5.14"}, nil, BuiltIn,
			"version", ""},
		{"no version", "cgroup-kill", kernel.Facts{}, nil, Unknown, "", ""},
	} {
		n, ok := need.Of(tt.need)
		if !ok {
			t.Fatal(tt.need)
		}
		k := judge(n, tt.facts, tt.has)
		if k.Presence != tt.presence || k.Source != tt.source ||
			!strings.Contains(k.Detail, tt.detail) {
			t.Errorf("%s: %+v", tt.what, k)
		}
	}
}

// TestTestKernel checks the test kernel, if it exists and KVM runs it: the running kernel and its
// configuration agree.
func TestTestKernel(t *testing.T) {
	image := os.Getenv("TEST_KERNEL")
	if image == "" {
		t.Skip("TEST_KERNEL names no kernel")
	}
	h := &statedir.Dir{Root: t.TempDir()}
	r, err := Check(t.Context(), h, Options{Image: image, Progress: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Boot.Done && strings.Contains(r.Boot.Why, "KVM was not tried") {
		t.Skip(r.Boot.Why)
	}
	if !r.Boot.Done || !strings.Contains(r.Boot.Isolation, "test kernel") || !r.Config ||
		!strings.HasSuffix(r.Version, "-tpv") {
		t.Errorf("%+v, configuration %t, version %s", r.Boot, r.Config, r.Version)
	}
	if !r.Boot.Open || r.Boot.Release != r.Version {
		t.Errorf("the running kernel is not seen to be open: %+v", r.Boot)
	}
	if !r.starts(need.QEMU) || !r.starts(need.Firecracker) {
		t.Errorf("it is not usable: %+v", r.Findings())
	}
	for _, n := range r.Needs {
		want := BuiltIn
		if n.Name == "smp" || n.Name == "dummy" {
			want = Missing
		}
		if n.Presence != want {
			t.Errorf("%s: %+v", n.Name, n)
		}
	}
	if left, _ := filepath.Glob(h.Path("kernel", "*.tmp")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestHiddenTestKernel: a test kernel under another name, in its file and when it runs, is detected
// by its behavior.
func TestHiddenTestKernel(t *testing.T) {
	image := os.Getenv("TEST_KERNEL")
	if image == "" {
		t.Skip("TEST_KERNEL names no kernel")
	}
	b, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	hidden := filepath.Join(t.TempDir(), "vmlinux")
	b = bytes.ReplaceAll(b, []byte("-tpv"), []byte("-abc"))
	if err := os.WriteFile(hidden, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Check(t.Context(), &statedir.Dir{Root: t.TempDir()},
		Options{Image: hidden, Progress: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Boot.Done && strings.Contains(r.Boot.Why, "KVM was not tried") {
		t.Skip(r.Boot.Why)
	}
	if r.Test || !r.Boot.Done || !strings.HasSuffix(r.Boot.Release, "-abc") ||
		!strings.Contains(r.Boot.Refused, "programs can read the memory") || r.starts(need.QEMU) {
		t.Errorf("%+v", r.Boot)
	}
}

// TestKernelFindings: for any knowledge about a kernel, each missing ability is named, and only
// required abilities stop machines of their substrate.
func TestKernelFindings(t *testing.T) {
	presences := []Presence{BuiltIn, AsModule, Present, Missing, Unknown}
	rapid.Check(t, func(t *rapid.T) {
		r := &KernelReport{File: "vmlinux", Format: "vmlinux", Boot: KernelBoot{Done: true}}
		stops := map[need.Level]bool{}
		for _, n := range need.All() {
			k := judge(n, kernel.Facts{}, nil)
			if k.Presence = rapid.SampledFrom(presences).Draw(t, n.Name); rapid.IntRange(0,
				9).Draw(t, "whole") > 0 {
				k.Presence = Present
			}
			r.Needs = append(r.Needs, k)
			if k.Presence == Missing {
				stops[n.Level] = true
			}
		}
		for _, level := range []need.Level{need.QEMU, need.Firecracker} {
			if want := !stops[need.Always] && !stops[level]; r.starts(level) != want {
				t.Fatalf("usable for %s: %t, want %t", level, r.starts(level), want)
			}
		}
		lines := map[string]doctor.Finding{}
		for _, f := range r.Findings() {
			if _, twice := lines[f.Name]; twice || strings.Contains(f.Detail, "\n") ||
				f.Detail == "" {
				t.Fatalf("the finding %+v", f)
			}
			lines[f.Name] = f
		}
		for _, k := range r.Needs {
			f := lines[k.Name]
			if k.Presence == Missing && (!strings.Contains(f.Detail, k.Config) ||
				!strings.Contains(f.Detail, k.Without) || f.Status == doctor.StatusOK) {
				t.Fatalf("%s is missing, and the finding is %+v", k.Name, f)
			}
			if (f.Status == doctor.StatusFail) != (k.Presence == Missing &&
				k.Level == need.Always) {
				t.Fatalf("%s: %+v", k.Name, f)
			}
			if k.Presence == Missing && k.Level == need.QEMU &&
				!strings.Contains(lines["qemu"].Detail, k.Name) {
				t.Fatalf("without %s: %+v", k.Name, lines["qemu"])
			}
		}
		if !r.starts(need.QEMU) && lines["qemu"].Status == doctor.StatusOK {
			t.Fatalf("%+v", lines["qemu"])
		}
		if r.Usable() != (r.starts(need.QEMU) || r.starts(need.Firecracker)) {
			t.Fatalf("usable: %t", r.Usable())
		}
		r.Boot = KernelBoot{Done: true, Refused: "it says that it is another"}
		if r.starts(need.QEMU) || r.starts(need.Firecracker) ||
			r.separation().Status != doctor.StatusFail {
			t.Fatal("a kernel whose machines are refused is usable")
		}
		r.Boot = KernelBoot{Failed: true, Why: "the guest kernel panicked: x"}
		if r.starts(need.QEMU) || r.starts(need.Firecracker) {
			t.Fatal("a kernel that does not boot is usable")
		}
	})
}
