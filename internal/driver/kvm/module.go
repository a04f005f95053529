package kvm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Modules returns the kernel's modules that serve KVM on a host with this root folder, as
// "kvm_amd": what is loaded, or built in and fits the CPU. Empty: none can be told.
func Modules(root string) []string {
	loaded, _ := os.ReadFile(filepath.Join(root, "proc/modules")) // a kernel without modules has no such file
	var found []string
	for line := range strings.Lines(string(loaded)) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "kvm_") {
			found = append(found, name)
		}
	}
	// Those that are built in are there on any CPU.
	info, _ := os.ReadFile(filepath.Join(root, "proc/cpuinfo"))
	flags := strings.Fields(string(info))
	builtIn, _ := filepath.Glob(filepath.Join(root, "sys/module/kvm_*")) // fails for a malformed pattern only
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
