package kvm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestModules(t *testing.T) {
	for _, tt := range []struct {
		modules, flags string
		builtIn        []string
		want           string
	}{
		{"kvm_amd 200704 4 - Live 0x0\nkvm 1 1 kvm_amd, Live 0x0\next4 1 0 - Live 0x0\n", "fpu svm",
			[]string{"kvm", "kvm_amd"}, "kvm_amd"},
		{"", "fpu", []string{"kvm", "kvm_pvm", "kvm_intel"}, "kvm_pvm"},
		{"", "fpu vmx", []string{"kvm", "kvm_amd", "kvm_intel"}, "kvm_intel"},
		{"", "fpu", nil, ""},
	} {
		root := t.TempDir()
		for path, content := range map[string]string{"proc/modules": tt.modules,
			"proc/cpuinfo": "flags\t\t: " + tt.flags + "\n"} {
			if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range tt.builtIn {
			if err := os.MkdirAll(filepath.Join(root, "sys/module", name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(Modules(root), " "); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
	if got := Modules(t.TempDir()); len(got) > 0 {
		t.Errorf("of nothing: %q", got)
	}
}
