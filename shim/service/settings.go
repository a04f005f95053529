package service

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/shim/pod"
	"turnstone.dev/turnstone/shim/spec"
)

// Settings are those of a node, from the file shim.toml in the state directory, and those of a
// handler (RuntimeClass), from the options of its runtime in containerd's configuration.
type Settings struct {
	Substrate string          `toml:"substrate"` // default: gvisor
	Emulate   bool            `toml:"emulate"`   // without KVM a microVM is emulated
	CPUs      int             `toml:"cpus"`      // of a pod without limits
	Memory    turnstone.Bytes `toml:"memory"`
	Disk      turnstone.Bytes `toml:"disk"`
	MaxCPUs   int             `toml:"max_cpus"`
	MaxMemory turnstone.Bytes `toml:"max_memory"`
	MaxDisk   turnstone.Bytes `toml:"max_disk"`
	// KillLimit is the number of seconds that a sandbox has to end a process by SIGKILL; then the
	// sandbox is ended.
	KillLimit int `toml:"kill_limit"`

	// hostNetwork is the identity of the host's network namespace, if the shim is in one of its own.
	hostNetwork string
	socket      string // the address at which the shim serves; it removes it at its end

	home     string
	programs driver.Programs
	kernel   kernel.Choice
}

// SettingsFile is the name of the settings in the state directory.
const SettingsFile = "shim.toml"

// DefaultHome is the state directory of a node.
const DefaultHome = "/var/lib/turnstone"

// optionsVar is the variable by which the shim that starts passes on its handler's options, in TOML.
const optionsVar = "TURN_SHIM_OPTIONS"

// networkVar is the variable that tells a shim that it is in a network namespace of its own, and which
// one is the host's.
const networkVar = "TURN_SHIM_NETWORK"

// socketVar is the variable that tells a shim the address of its socket.
const socketVar = "TURN_SHIM_SOCKET"

// Load reads the settings of the state directory, which those of the handler override. getenv is
// asked for what containerd's environment has of them: TURN_HOME, TURN_SUBSTRATE, the guest kernel
// and the programs.
func Load(getenv func(string) string) (Settings, error) {
	s := Settings{Substrate: driver.GVisor, CPUs: 2, Memory: 2 << 30, Disk: 10 << 30,
		MaxCPUs: turnstone.MaxCPUs, MaxMemory: turnstone.MaxMemory,
		KillLimit: 60, home: homeOf(getenv),
		hostNetwork: getenv(networkVar), socket: getenv(socketVar)}
	path := filepath.Join(s.home, SettingsFile)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err := s.add(path, string(text)); err != nil {
		return s, err
	}
	if v := getenv("TURN_SUBSTRATE"); v != "" {
		s.Substrate = v
	}
	if err := s.add(ofRuntime, getenv(optionsVar)); err != nil {
		return s, err
	}
	if s.MaxDisk == 0 { // the annotation that asks for more is the tenant's
		s.MaxDisk = s.Disk
	}
	if s.KillLimit < 1 || s.KillLimit > 3600 {
		return s, fmt.Errorf("kill_limit: %d is not between 1 and 3600 seconds", s.KillLimit)
	}
	if err := driver.Fits(s.Substrate, driver.Needs{}); err != nil {
		return s, err
	}
	s.programs = driver.Programs{Runsc: getenv("TURN_RUNSC"), QEMU: getenv("TURN_QEMU"),
		Firecracker: getenv("TURN_FIRECRACKER"), Jailer: getenv("TURN_JAILER")}
	s.kernel = kernel.Choice{Image: getenv("TURN_KERNEL"), Modules: getenv("TURN_KERNEL_MODULES")}
	return s, nil
}

func homeOf(getenv func(string) string) string { return cmp.Or(getenv("TURN_HOME"), DefaultHome) }

// ofRuntime names the settings of a handler in errors.
const ofRuntime = "options of the runtime"

// optionsType is the key by which options may name their kind to containerd, which passes it on with them.
const optionsType = "TypeUrl"

// add reads settings over those that s has. from names them in errors.
func (s *Settings) add(from, text string) error {
	meta, err := toml.Decode(text, s)
	unknown := slices.DeleteFunc(meta.Undecoded(), func(key toml.Key) bool {
		return from == ofRuntime && strings.EqualFold(key.String(), optionsType)
	})
	if err == nil && len(unknown) > 0 {
		err = fmt.Errorf("%s is no setting", unknown[0])
	}
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}

// handlerOptions returns the options of the pod's handler among what containerd passes to a shim
// that starts: the file that they name, or themselves; without options the file that the name of the
// shim's program names.
func handlerOptions(p *bootapi.BootstrapParams, program, home string) (string, error) {
	var o runtimeoptions.Options
	has, err := p.FindExtension(&o)
	if err != nil {
		return "", fmt.Errorf("%s: %w", ofRuntime, err)
	}
	file := o.GetConfigPath()
	if name := handlerName(program); name != "" && !has {
		file = filepath.Join(home, "shim-"+name+".toml")
	}
	if file == "" {
		return string(o.GetConfigBody()), nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", ofRuntime, err)
	}
	return string(text), nil
}

// handlerName returns the name of a handler in that of the shim's program, such as vm in
// containerd-shim-turnstone-vm-v2; empty: none. containerd before 2.3 creates no container in a pod of a
// runtime that has options.
func handlerName(program string) string {
	rest, ours := strings.CutPrefix(filepath.Base(program), "containerd-shim-turnstone-")
	name, named := strings.CutSuffix(rest, "-v2")
	if !ours || !named {
		return ""
	}
	return name
}

func (s Settings) bounds() spec.Bounds {
	return spec.Bounds{
		Default: turnstone.Shape{CPUs: s.CPUs, Memory: s.Memory, Disk: s.Disk},
		Most:    turnstone.Shape{CPUs: s.MaxCPUs, Memory: s.MaxMemory, Disk: s.MaxDisk}}
}

// options returns the options of a pod. Images are made in the control group that group is the file of.
func (s Settings) options(say func(...any), group string) pod.Options {
	return pod.Options{Home: s.home, Substrate: s.Substrate, Emulate: s.Emulate, Kernel: s.kernel,
		Programs: s.programs, MakeImage: makeImage(group),
		Progress: func(what string) { say(what) }}
}
