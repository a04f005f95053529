package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// Limits are the maximum resources of sandboxes on a host. Neither a flag nor a document exceeds
// them. A zero value is unset; For replaces it by a default for the host.
type Limits struct {
	CPUs      int   `toml:"cpus"`      // of a sandbox
	Memory    Size  `toml:"memory"`    // of a sandbox
	Disk      Size  `toml:"disk"`      // data that a sandbox may write
	Timeout   Time  `toml:"timeout"`   // of a turn
	Sandboxes int   `toml:"sandboxes"` // concurrent sandboxes of a state directory
	Output    Size  `toml:"output"`    // kept output of each stream of a step
	Entries   int64 `toml:"entries"`   // files, folders and links that a turn may leave changed
	FileSize  Size  `toml:"file_size"` // of a file that a turn leaves, including holes
	FreeSpace Space `toml:"free_space"`
}

// A Size is a number of bytes, written such as "4GiB".
type Size turnstone.Bytes

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(text []byte) error {
	b, err := turnstone.ParseBytes(string(text))
	if err == nil && b == 0 {
		err = errors.New("0 is too small to run anything")
	}
	*s = Size(b)
	return err
}

// A Time is a duration, written such as "90s" or "24h".
type Time time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Time) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not a time: write a number and a unit, such as 90s or 24h", text)
	}
	*t = Time(d)
	return nil
}

// A Space is the free space to keep on a file system: a size or a percentage, written such as
// "2GiB" or "5%".
type Space struct {
	Bytes   turnstone.Bytes
	Percent float64
	set     bool
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Space) UnmarshalText(text []byte) (err error) {
	if number, ok := strings.CutSuffix(string(text), "%"); ok {
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(v >= 0 && v <= 90) {
			return fmt.Errorf("%q is not a percentage of the disk from 0%% to 90%%", text)
		}
		*s = Space{Percent: v, set: true}
		return nil
	}
	*s = Space{set: true}
	s.Bytes, err = turnstone.ParseBytes(string(text))
	return err
}

// Floor returns the bytes to keep free on a file system with total bytes.
func (s Space) Floor(total uint64) uint64 {
	switch {
	case !s.set:
		return min(defaultFree, total/20)
	case s.Percent > 0:
		return uint64(s.Percent / 100 * float64(total))
	}
	return uint64(s.Bytes)
}

// Defaults for values that the configuration does not set.
const (
	defaultTimeout   = 24 * time.Hour
	defaultSandboxes = 256
	DefaultOutput    = 2 << 30
	defaultEntries   = 5_000_000
	leastEntries     = 256 << 10
	entryCost        = 512 // approximate bytes of memory
	defaultFileSize  = 1 << 40
	defaultFree      = 1 << 30 // for a small disk, a twentieth
)

// maxEntries bounds the configured value: readers keep some hundred bytes for each entry.
const maxEntries = 100_000_000

// check reports the first limit that is too small to run anything, or too large for readers.
func (l *Limits) check() error {
	switch {
	case l.CPUs < 0 || l.CPUs > turnstone.MaxCPUs:
		return fmt.Errorf("limits.cpus: %d is not between 1 and %d", l.CPUs, turnstone.MaxCPUs)
	case l.Memory != 0 && turnstone.Bytes(l.Memory) < turnstone.MinMemory:
		return fmt.Errorf("limits.memory: a sandbox needs at least %s", turnstone.MinMemory)
	case l.Disk != 0 && turnstone.Bytes(l.Disk) < turnstone.MinDisk:
		return fmt.Errorf("limits.disk: a sandbox needs at least %s", turnstone.MinDisk)
	case l.Sandboxes < 0:
		return fmt.Errorf("limits.sandboxes: %d is not a valid number of sandboxes", l.Sandboxes)
	case l.Entries < 0 || l.Entries > maxEntries:
		return fmt.Errorf("limits.entries: %d is not between 1 and %d", l.Entries, maxEntries)
	}
	return nil
}

// A Host is the input for the defaults.
type Host struct {
	CPUs   int
	Memory turnstone.Bytes // 0: unknown
	Disk   turnstone.Bytes // size of the file system with the state directory; 0: unknown
}

// HostOf queries the kernel about this machine and the file system that contains dir.
func HostOf(dir string) Host {
	h := Host{CPUs: runtime.NumCPU()}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		h.Memory = turnstone.Bytes(si.Totalram) * turnstone.Bytes(si.Unit)
	}
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil {
		h.Disk = turnstone.Bytes(min(st.Blocks*uint64(st.Bsize), math.MaxInt64))
	}
	return h
}

// For returns l with every limit set. The defaults always admit a document without requests.
func (l Limits) For(h Host) Limits {
	shape := turnstone.DefaultShape()
	l.CPUs = cmp.Or(l.CPUs, min(turnstone.MaxCPUs, max(h.CPUs, shape.CPUs)))
	memory, disk := turnstone.MaxMemory, turnstone.MaxDisk
	if h.Memory > 0 {
		memory = min(memory, h.Memory/4*3)
	}
	if h.Disk > 0 {
		disk = min(disk, h.Disk/2)
	}
	l.Memory = cmp.Or(l.Memory, Size(max(memory, shape.Memory)))
	l.Disk = cmp.Or(l.Disk, Size(max(disk, shape.Disk)))
	l.Timeout = cmp.Or(l.Timeout, Time(defaultTimeout))
	l.Sandboxes = cmp.Or(l.Sandboxes, defaultSandboxes)
	l.Output = cmp.Or(l.Output, Size(DefaultOutput))
	entries := int64(defaultEntries)
	if h.Memory > 0 { // readers keep all entries: at most a quarter of the memory
		entries = max(leastEntries, min(entries, int64(h.Memory)/4/entryCost))
	}
	l.Entries = cmp.Or(l.Entries, entries)
	l.FileSize = cmp.Or(l.FileSize, Size(defaultFileSize))
	return l
}
