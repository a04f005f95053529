// Package wire is the protocol between the host and the agent inside a sandbox.
//
// One connection is one yamux session over any byte stream (a virtio-serial
// port, a unix socket, a pipe), which gives many streams with flow control each.
// A stream carries one call: the caller writes one JSON line {"method", "params"},
// the agent answers with one JSON line {"result"} or {"error"}; calls that move
// bulk data carry it raw on the same stream, after the line that announces it.
// Process.stdin and Process.output have no answer: only the raw bytes.
// Methods are named Domain.verb, in the style of the Chrome DevTools Protocol.
//
// What comes out of a sandbox is an attacker's input: every line is bounded by
// MaxLine, unknown methods and malformed lines end the stream with an error.
package oldwire

import "time"

// The methods an agent answers.
const (
	MethodConfigure = "Sandbox.configure" // ConfigureParams → ConfigureResult; must be the first call after a restore
	MethodStats     = "Sandbox.stats"     // no params → StatsResult
	MethodExecute   = "Shell.execute"     // ExecuteParams → ExitResult: run one step in the shell session
	MethodStart     = "Process.start"     // StartParams → ExitResult
	MethodStdin     = "Process.stdin"     // StreamParams, then raw bytes to the process until the stream is half-closed
	MethodOutput    = "Process.output"    // StreamParams, then raw bytes from the process until EOF
	MethodKill      = "Process.kill"      // KillParams → empty: SIGKILL to the process's whole tree
	MethodPut       = "FileSystem.put"    // PutParams, then a tar stream → empty
	MethodGet       = "FileSystem.get"    // GetParams → empty, then a tar stream
)

// MaxLine bounds one JSON line, in bytes.
const MaxLine = 16 << 20

// ConfigureParams turns a restored clone into a sandbox of its own. All of it is
// applied before the agent answers; the result confirms what was done.
type ConfigureParams struct {
	Entropy   []byte    `json:"entropy"`   // fresh host entropy for the kernel's RNG, at least 32 bytes
	Time      time.Time `json:"time"`      // the host's wall clock
	Hostname  string    `json:"hostname"`  // the sandbox's own
	MachineID string    `json:"machineId"` // 32 lower-case hex digits
	Network   *Network  `json:"network,omitempty"`
	Scratch   string    `json:"scratch"`             // serial number of the block device that takes the writes
	MemoryMax int64     `json:"memoryMax,omitempty"` // bytes for all processes of the guest together; 0: the agent decides
	PidsMax   int64     `json:"pidsMax,omitempty"`   // processes of the guest together; 0: the agent decides
}

// Network is the static configuration of the sandbox's one interface.
type Network struct {
	Address string   `json:"address"` // CIDR, as 10.0.2.15/24
	Gateway string   `json:"gateway"`
	DNS     []string `json:"dns"`
}

// ConfigureResult confirms a ConfigureParams. A sandbox whose Reseeded is false
// must not be used: its random numbers may be another clone's.
type ConfigureResult struct {
	Reseeded bool   `json:"reseeded"`
	BootID   string `json:"bootId"`
}

// StatsResult tells what the guest uses.
type StatsResult struct {
	MemoryTotal     int64 `json:"memoryTotal"`     // bytes
	MemoryAvailable int64 `json:"memoryAvailable"` // bytes
	DiskTotal       int64 `json:"diskTotal"`       // bytes
	DiskFree        int64 `json:"diskFree"`        // bytes
	Processes       int   `json:"processes"`
}

// StartParams starts one process. ID is chosen by the caller, so that it can open
// the process's streams (Process.output, Process.stdin) without waiting for the
// answer. A stream that was not opened before the process writes blocks it, as a
// pipe does; callers open both outputs always.
type StartParams struct {
	ID    string   `json:"id"`
	Argv  []string `json:"argv"`
	Env   []string `json:"env,omitempty"`   // KEY=VALUE, added to the sandbox's default environment
	Cwd   string   `json:"cwd,omitempty"`   // made if missing; default "/workspace"
	Stdin bool     `json:"stdin,omitempty"` // false: standard input is /dev/null
}

// ExecuteParams runs one step's script in the agent's shell session: exported
// environment and working directory carry over from one Shell.execute to the next.
type ExecuteParams struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"`     // names the script file, which shows in the shell's messages
	Language string   `json:"language"` // "bash" or "sh"
	Script   string   `json:"script"`
	Env      []string `json:"env,omitempty"` // KEY=VALUE, set in the session before the step
	Cwd      string   `json:"cwd,omitempty"` // changes the session's directory before the step; made if missing
}

// ExitResult is how a process or step ended.
type ExitResult struct {
	ExitCode  int           `json:"exitCode"` // 128+signal when a signal ended it, as the shell has it
	Signal    string        `json:"signal,omitempty"`
	OOMKilled bool          `json:"oomKilled,omitempty"` // the guest's memory limit killed a process of the tree
	DiskFull  bool          `json:"diskFull,omitempty"`  // the sandbox's disk had no room left when it ended
	Killed    bool          `json:"killed,omitempty"`    // by Process.kill
	StateLost bool          `json:"stateLost,omitempty"` // Shell.execute: the shell left no environment and directory; the session's stay as before
	Duration  time.Duration `json:"durationNs"`
	Cwd       string        `json:"cwd,omitempty"` // Shell.execute: the session's directory afterwards
	Env       []string      `json:"env,omitempty"` // Shell.execute: the session's exported environment afterwards
}

// StreamParams names one stream of a process.
type StreamParams struct {
	ID string `json:"id"`
	FD int    `json:"fd"` // 1 standard output, 2 standard error; ignored by Process.stdin
}

// KillParams names a process.
type KillParams struct {
	ID string `json:"id"`
}

// PutParams unpacks a tar stream, which ends when the caller closes its half of
// the stream. Dest is absolute. Where it is a directory, or ends in "/" (it is
// then made if missing), the stream goes below it; else the stream's one
// top-level name becomes Dest's.
type PutParams struct {
	Dest string `json:"dest"`
}

// GetParams packs Path (absolute; a file or a directory) as a tar stream whose
// entries are relative to Path's parent. A stream without a tar's end, two blocks
// of zeros, was cut off.
type GetParams struct {
	Path string `json:"path"`
}
