package kvm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Modules returns the kernel's modules that serve KVM on a host with this root folder, such as
// "kvm_amd": loaded modules, or built-in modules that fit the CPU. Empty: unknown.
func Modules(root string) []string {
	// missing if the kernel has no modules
	loaded, _ := os.ReadFile(filepath.Join(root, "proc/modules"))
	var found []string
	for line := range strings.Lines(string(loaded)) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "kvm_") {
			found = append(found, name)
		}
	}
	// Built-in modules exist on any CPU.
	info, _ := os.ReadFile(filepath.Join(root, "proc/cpuinfo"))
	flags := strings.Fields(string(info))
	// fails for a malformed pattern only
	builtIn, _ := filepath.Glob(filepath.Join(root, "sys/module/kvm_*"))
	for _, path := range builtIn {
		name := filepath.Base(path)
		flag := map[string]string{"kvm_intel": "vmx", "kvm_amd": "svm"}[name]
		if flag == "" || slices.Contains(flags, flag) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
