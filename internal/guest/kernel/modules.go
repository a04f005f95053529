package kernel

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"turnstone.dev/turnstone"
)

// maxModule bounds an unpacked module in bytes.
const maxModule = 64 << 20

// A wanted module is a module that the guest uses.
type wanted struct {
	name     string
	optional bool // the guest works without the module
}

// wantedModules are the drivers for the substrates' machines: disks, the agent's channel, the
// network, the root image and its overlay. Their dependencies are added. Some kernels have some of
// them built in.
func wantedModules() []wanted {
	return []wanted{
		{name: "virtio_pci"},
		{name: "virtio_mmio", optional: true},
		{name: "virtio_blk"},
		{name: "virtio_console"},
		{name: "virtio_net"},
		{name: "virtio_rng", optional: true},
		{name: "erofs"},
		{name: "ext4"},
		{name: "overlay"},
		{name: "af_packet", optional: true},
		{name: "vmgenid", optional: true},
		// Firecracker: the agent's channel, and memory that returns to the host; and the network
		// card that the agent creates if the machine has none.
		{name: "vmw_vsock_virtio_transport", optional: true},
		{name: "virtio_balloon", optional: true},
		{name: "tun", optional: true},
	}
}

// memoryModules are the drivers for disks in the memory of deterministic machines. Their names
// follow those of wantedModules, so that the agent loads them later.
func memoryModules() []wanted {
	return []wanted{
		{name: "nfit", optional: true},
		{name: "nd_pmem", optional: true},
	}
}

// A tree is the folder lib/modules/<release> of a kernel.
type tree struct {
	root    fs.FS
	files   map[string]string // module name → path in root
	builtin map[string]bool
}

// openTree lists the modules below root. A folder without modules is an error. openTree reads the
// modules' .modinfo instead of depmod's modules.dep, which is missing in unpacked packages.
func openTree(root fs.FS) (*tree, error) {
	t := &tree{root: root, files: map[string]string{}, builtin: map[string]bool{}}
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, ok := moduleName(p); ok && d.Type().IsRegular() {
			t.files[name] = p
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	list, err := readBuiltin(root)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(list)) {
		if name, ok := moduleName(strings.TrimSpace(line)); ok {
			t.builtin[name] = true
		}
	}
	if len(t.files)+len(t.builtin) == 0 {
		return nil, errors.New(
			"contains no kernel modules: no .ko file, and no modules.builtin that names a module")
	}
	return t, nil
}

// maxBuiltin bounds modules.builtin in bytes.
const maxBuiltin = 4 << 20

// readBuiltin reads modules.builtin, which may be missing.
func readBuiltin(root fs.FS) ([]byte, error) {
	const name = "modules.builtin"
	fi, err := fs.Stat(root, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular() || fi.Size() > maxBuiltin: // opening a FIFO would block
		return nil, errors.New(name + " is not a regular file, or is too large")
	}
	return fs.ReadFile(root, name)
}

// moduleName returns the kernel's name of the module in file p.
func moduleName(p string) (string, bool) {
	base := path.Base(p)
	for _, suffix := range []string{".ko", ".ko.xz", ".ko.zst", ".ko.gz"} {
		if name, ok := strings.CutSuffix(base, suffix); ok && name != "" {
			return strings.ReplaceAll(name, "-", "_"), true
		}
	}
	return "", false
}

// A loaded module is an unpacked module in load order.
type loaded struct {
	name    string
	content []byte
}

// resolve returns the wanted modules and their dependencies, each after its own dependencies.
// Modules of before are left out.
func (t *tree) resolve(want []wanted, before ...loaded) ([]loaded, error) {
	var order []loaded
	state := map[string]int{} // 1: being resolved, 2: done
	for _, m := range before {
		state[m.name] = 2
	}
	var visit func(name string, optional bool) error
	visit = func(name string, optional bool) error {
		name = strings.ReplaceAll(name, "-", "_")
		if state[name] != 0 || t.builtin[name] {
			return nil // no load order satisfies a cycle; the kernel reports it
		}
		state[name] = 1
		file, ok := t.files[name]
		if !ok {
			if optional {
				return nil
			}
			return fmt.Errorf("the kernel has no module %s", name)
		}
		content, err := readModule(t.root, file)
		if err != nil {
			return fmt.Errorf("module %s: %w", file, err)
		}
		needs, soft, err := dependencies(content)
		if err != nil {
			return fmt.Errorf("module %s: %w", file, err)
		}
		for _, n := range soft {
			if err := visit(n, true); err != nil {
				return err
			}
		}
		for _, n := range needs {
			if err := visit(n, false); err != nil {
				return err
			}
		}
		order = append(order, loaded{name, content})
		state[name] = 2
		return nil
	}
	for _, w := range want {
		if err := visit(w.name, w.optional); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// readModule reads and unpacks a module. The kernel's loader can unpack some formats, but not in
// every configuration.
func readModule(root fs.FS, file string) ([]byte, error) {
	f, err := root.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	for _, z := range formats() {
		suffix := map[string]string{"xz": ".xz", "zstd": ".zst", "gzip": ".gz"}[z.name]
		if suffix == "" || !strings.HasSuffix(file, suffix) {
			continue
		}
		if r, err = z.open(f); err != nil {
			return nil, err
		}
	}
	content, err := io.ReadAll(io.LimitReader(r, maxModule+1))
	switch {
	case err != nil:
		return nil, err
	case len(content) > maxModule:
		return nil, fmt.Errorf("is larger than %d bytes", maxModule)
	case !isELF(content):
		return nil, errors.New("is not an ELF file")
	}
	return content, nil
}

// dependencies reads the section .modinfo: the modules that a module needs, and existing modules
// that should be loaded before it.
func dependencies(module []byte) (needs, soft []string, err error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, nil, err
	}
	section := f.Section(".modinfo")
	if section == nil || section.Size > 1<<20 {
		return nil, nil, errors.New("has no .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, nil, err
	}
	for field := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok {
			for name := range strings.SplitSeq(list, ",") {
				if name != "" {
					needs = append(needs, name)
				}
			}
		}
		if rule, ok := strings.CutPrefix(field, "softdep="); ok {
			pre := false
			for word := range strings.FieldsSeq(rule) {
				if strings.HasSuffix(word, ":") {
					pre = word == "pre:"
				} else if pre {
					soft = append(soft, word)
				}
			}
		}
	}
	sort.Strings(needs) // the linker's order has no meaning
	return needs, soft, nil
}

// writeModules writes mods to dir as NN-name.ko, counted from first, and returns them for a Kernel.
func writeModules(dir string, first int, mods []loaded) ([]Module, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	out := make([]Module, 0, len(mods))
	for i, m := range mods {
		name := fmt.Sprintf("%02d-%s.ko", first+i, m.name)
		if err := os.WriteFile(filepath.Join(dir, name), m.content, 0o444); err != nil {
			return nil, err
		}
		out = append(out, Module{Name: m.name, Path: filepath.Join(dir, name),
			Digest: turnstone.DigestBytes(m.content)})
	}
	return out, nil
}
