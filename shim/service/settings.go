package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/BurntSushi/toml"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/shim/pod"
	"turnstone.dev/turnstone/shim/spec"
)

// Settings are those of a node, from the file shim.toml in the state directory.
type Settings struct {
	Substrate string          `toml:"substrate"` // default: gvisor
	CPUs      int             `toml:"cpus"`      // of a pod without limits
	Memory    turnstone.Bytes `toml:"memory"`
	Disk      turnstone.Bytes `toml:"disk"`
	MaxCPUs   int             `toml:"max_cpus"`
	MaxMemory turnstone.Bytes `toml:"max_memory"`
	MaxDisk   turnstone.Bytes `toml:"max_disk"`

	home     string
	programs driver.Programs
}

// SettingsFile is the name of the settings in the state directory.
const SettingsFile = "shim.toml"

// DefaultHome is the state directory of a node.
const DefaultHome = "/var/lib/turnstone"

// Load reads the settings of the state directory home. getenv is asked for what containerd's
// environment has of them: TURN_HOME, TURN_SUBSTRATE, and the programs.
func Load(getenv func(string) string) (Settings, error) {
	s := Settings{Substrate: driver.GVisor, CPUs: 2, Memory: 2 << 30, Disk: 10 << 30,
		MaxCPUs: turnstone.MaxCPUs, MaxMemory: turnstone.MaxMemory, MaxDisk: turnstone.MaxDisk,
		home: getenv("TURN_HOME")}
	if s.home == "" {
		s.home = DefaultHome
	}
	path := filepath.Join(s.home, SettingsFile)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if text != nil {
		meta, err := toml.Decode(string(text), &s)
		if err == nil && len(meta.Undecoded()) > 0 {
			err = fmt.Errorf("%s is no setting", meta.Undecoded()[0])
		}
		if err != nil {
			return s, fmt.Errorf("%s: %w", path, err)
		}
	}
	if v := getenv("TURN_SUBSTRATE"); v != "" {
		s.Substrate = v
	}
	s.programs = driver.Programs{Runsc: getenv("TURN_RUNSC"), QEMU: getenv("TURN_QEMU"),
		Firecracker: getenv("TURN_FIRECRACKER"), Jailer: getenv("TURN_JAILER")}
	return s, nil
}

func (s Settings) bounds() spec.Bounds {
	return spec.Bounds{
		Default: turnstone.Shape{CPUs: s.CPUs, Memory: s.Memory, Disk: s.Disk},
		Most:    turnstone.Shape{CPUs: s.MaxCPUs, Memory: s.MaxMemory, Disk: s.MaxDisk}}
}

func (s Settings) options(say func(...any)) pod.Options {
	return pod.Options{Home: s.home, Substrate: s.Substrate, Programs: s.programs,
		Progress: func(what string) { say(what) }}
}
