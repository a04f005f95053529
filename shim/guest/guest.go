// Package guest is what the shim and its helper in the sandbox agree on: paths, and the description
// of a container's processes. The helper reads descriptions that the shim has written; what the
// helper writes is the guest's, and untrusted.
package guest

import (
	"errors"
	"path"
	"regexp"
	"strings"
)

// Where the helper and its files are in the sandbox.
const (
	Dir     = "/.turnstone"
	Program = Dir + "/podinit"
	Volumes = Dir + "/volumes"
	Images  = Dir + "/images" // with a folder for each image that is mounted
	Disk    = Dir + "/disk"   // a folder of the sandbox's disk, with what containers write over images
	Shm     = Dir + "/shm"
)

// Commands of the helper.
const (
	CmdUnpack = "unpack" // DIR: unpacks the tar stream on standard input
	CmdUpdate = "update" // DIR: unpack, and removes what the stream does not have
	CmdRun    = "run"    // ID: runs the container's first process
	CmdExec   = "exec"   // ID EXEC: runs another process in the container
	CmdKill   = "kill"   // ID EXEC SIGNAL
	CmdStats  = "stats"  // ID: prints Stats as JSON
	CmdRemove = "remove" // ID: removes the container's files
	CmdLimit  = "limit"  // ID: applies the Limits in FileLimits
)

// Files of a container below ContainerDir. Those of an exec end with its name.
const (
	FileConfig = "config"
	FileStatus = "status"
	FilePID    = "pid"
	FileLimits = "limits"
	FileRoot   = "root"
)

// Started is the content of FileStatus of a process that runs. Any other content is why it does
// not.
const Started = "started\n"

// MaxStatus bounds FileStatus in bytes.
const MaxStatus = 4 << 10

// idForm is the form of names of containers and execs, as containerd has them.
var idForm = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*$`)

// CheckID reports a name that is no name of a container.
func CheckID(id string) error {
	if len(id) > 128 || !idForm.MatchString(id) {
		return errors.New("it is no name of a container or process")
	}
	return nil
}

// WritesDir returns the folder with what a container writes over its image.
func WritesDir(id string) string { return path.Join(Disk, id) }

// ContainerDir returns the folder of a container.
func ContainerDir(id string) string { return path.Join(Dir, "c", id) }

// File returns the path of a container's file name; exec is empty for the first process.
func File(id, exec, name string) string {
	if exec != "" {
		name += "-" + exec
	}
	return path.Join(ContainerDir(id), name)
}

// A Process describes a process of a container.
type Process struct {
	Args         []string `json:"args"`
	Env          []string `json:"env,omitempty"`
	Cwd          string   `json:"cwd"`
	Terminal     bool     `json:"terminal,omitempty"`
	UID          uint32   `json:"uid"`
	GID          uint32   `json:"gid"`
	Groups       []uint32 `json:"groups,omitempty"`
	Umask        *uint32  `json:"umask,omitempty"`
	Capabilities []int    `json:"capabilities,omitempty"` // what the process may have
	NoNewPrivs   bool     `json:"noNewPrivs,omitempty"`
	Rlimits      []Rlimit `json:"rlimits,omitempty"`
	OOMScoreAdj  *int     `json:"oomScoreAdj,omitempty"`
}

// A Rlimit is a limit of setrlimit(2).
type Rlimit struct {
	Resource   int    `json:"resource"`
	Soft, Hard uint64 `json:",omitempty"`
}

// A Mount is a mount in a container.
type Mount struct {
	Type   string   `json:"type"`          // "bind", "tmpfs", "proc", "sysfs", "devpts", "mqueue"
	Source string   `json:"source"`        // of a bind: the path in the sandbox
	Sub    string   `json:"sub,omitempty"` // of a bind: the path of the folder below Source
	Target string   `json:"target"`        // in the container's root
	Flags  uintptr  `json:"flags,omitempty"`
	Data   []string `json:"data,omitempty"`
	File   bool     `json:"file,omitempty"` // the source of the bind is no folder
}

// A Container describes a container and its first process.
type Container struct {
	Process      Process           `json:"process"`
	Mounts       []Mount           `json:"mounts,omitempty"`
	Masked       []string          `json:"masked,omitempty"`
	ReadOnly     []string          `json:"readOnly,omitempty"`
	ReadOnlyRoot bool              `json:"readOnlyRoot,omitempty"`
	OwnPIDs      bool              `json:"ownPIDs,omitempty"` // a PID namespace of its own
	Image        string            `json:"image,omitempty"`   // the folder that is below its root; empty: its root is a copy
	Sysctl       map[string]string `json:"sysctl,omitempty"`
	Limits       Limits            `json:"limits"`
}

// Limits bound a container in the sandbox; 0: no bound.
type Limits struct {
	Memory    int64  `json:"memory,omitempty"` // bytes
	CPUQuota  int64  `json:"cpuQuota,omitempty"`
	CPUPeriod uint64 `json:"cpuPeriod,omitempty"`
	PIDs      int64  `json:"pids,omitempty"`
}

// Stats are what a container uses, as its kernel counts.
type Stats struct {
	CPU    uint64 `json:"cpu"`    // nanoseconds
	Memory uint64 `json:"memory"` // bytes
	Limit  uint64 `json:"limit"`  // bytes of memory; 0: none
	PIDs   uint64 `json:"pids"`
	OOM    uint64 `json:"oom"` // how often the bound of memory killed a process
}

// MaxStats bounds the text of Stats in bytes.
const MaxStats = 64 << 10

// CheckPath reports a path that is not absolute, or has a byte that no path has.
func CheckPath(p string) error {
	if !path.IsAbs(p) || strings.ContainsRune(p, 0) || len(p) > 4095 {
		return errors.New("it is not an absolute path of at most 4095 bytes")
	}
	return nil
}
