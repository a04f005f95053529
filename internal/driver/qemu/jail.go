package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/jail"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/subprocess"
	"turnstone.dev/turnstone/substrate"
)

// A wall separates a QEMU that a guest has broken out into from the host.
type wall string

const (
	jailed   wall = "namespaces" // an empty root, no rights, no network, no other processes
	filtered wall = "filter"     // only a filter of system calls, for hosts without namespaces
	open     wall = "none"       // only QEMU's own filter, if the host allows nothing else
)

// A Jail describes QEMU's confinement here, and why it is not better.
type Jail struct {
	Wall   wall      `json:"wall"`
	Reason string    `json:"reason"` // why there are no namespaces; empty: there are namespaces
	When   time.Time `json:"when"`
	Host   string    `json:"host"` // what the result depends on
}

// Namespaces reports whether QEMU has its own namespaces.
func (j Jail) Namespaces() bool { return j.Wall == jailed }

// proofLimit bounds the time of a QEMU that only prints its version.
const proofLimit = 20 * time.Second

// noLasts is how long a missing jail is remembered: an administrator may repair the host.
const noLasts = time.Minute

// Jail returns QEMU's confinement. It is determined once, by starting QEMU confined, and remembered
// until QEMU, the host's kernel, the user or the settings of user namespaces change; a confinement
// that is not the best is remembered for a minute only.
func (s *Substrate) Jail() Jail { return s.wall }

func (s *Substrate) findWall(ctx context.Context) (Jail, error) {
	var u unix.Utsname
	_ = unix.Uname(&u) // cannot fail on a valid pointer
	on := fmt.Sprintf("%s|%s|%s|%d|%s", s.binary, s.version, unix.ByteSliceToString(u.Release[:]),
		os.Geteuid(), host.NamespaceSettings())
	path := s.home.Path("cache", "qemu-jail.json")
	var known Jail
	if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &known) == nil &&
		known.Host == on &&
		(known.Namespaces() || time.Since(known.When).Abs() < noLasts) {
		return known, nil
	}
	j := Jail{Wall: jailed, When: time.Now().UTC(), Host: on}
	if err := s.tryWall(ctx, jailed); err != nil {
		j.Wall, j.Reason = filtered, host.WhyNoJail(err)
		if err := s.tryWall(ctx, filtered); err != nil {
			j.Wall = open
		}
	}
	if ctx.Err() != nil {
		return j, turnstone.NewError("qemu.new", turnstone.KindCanceled, s.binary, ctx.Err())
	}
	b, _ := json.Marshal(j)                 // plain data always encodes
	_ = filestamp.WriteFile(path, b, 0o600) // a result that is not remembered is determined again
	return j, nil
}

// tryWall starts a QEMU behind w that prints its version.
func (s *Substrate) tryWall(ctx context.Context, w wall) error {
	cmd, release, err := s.command(w, turnstone.Shape{}, false, []string{"--version"}, nil)
	if err != nil {
		return err
	}
	out, said := console.Tail{Limit: 8 << 10}, console.Tail{Limit: 8 << 10}
	cmd.Stdout, cmd.Stderr = &out, &said
	defer release()
	limited, cancel := context.WithTimeout(ctx, proofLimit)
	defer cancel()
	err = subprocess.Run(limited, cmd, subprocess.Options{Started: release})
	if limited.Err() != nil {
		return errors.New("QEMU does not print its version there")
	}
	if failure := jail.FailureOf(said.String(), err); failure != nil {
		return failure
	}
	if err != nil {
		return fmt.Errorf("QEMU does not start there: %w: %s", err,
			console.Printable(console.LastLine(said.String())))
	}
	if line, _, _ := strings.Cut(out.String(), "\n"); line != s.version {
		return fmt.Errorf("QEMU reports there that it is %q", console.Printable(line))
	}
	return nil
}

// shown returns the host's paths that a QEMU can see: libraries and firmware, read-only.
func shown(binary string) []string {
	at := []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"}
	prefixes := []string{"/usr"}
	if p := filepath.Dir(filepath.Dir(binary)); p != "/" && p != "/usr" {
		prefixes = append(prefixes, p)
		at = append(at, p+"/lib", p+"/lib64")
	}
	for _, p := range prefixes {
		at = append(at, p+"/share/qemu", p+"/share/seabios")
	}
	return at
}

const kvmDevice = "/dev/kvm"

// command returns the command that starts QEMU behind w, with files from descriptor 3 on. The
// caller calls release after the start.
func (s *Substrate) command(w wall, shape turnstone.Shape, hasHome bool, args []string,
	files []*os.File) (*exec.Cmd, func(), error) {
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	if w == open {
		cmd := exec.Command(s.binary, args...)
		cmd.Dir, cmd.Env, cmd.ExtraFiles = "/", env, files
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: unprivileged()}
		return cmd, func() {}, nil
	}
	binary, err := filepath.EvalSymlinks(s.binary)
	if err != nil {
		return nil, nil, err
	}
	j := jail.Jail{Bare: w == filtered, Show: shown(binary), FileSize: largestFile(shape, hasHome),
		Threads: uint64(shape.CPUs) + 128}
	if s.accel == accelKVM {
		j.Devices = []string{kvmDevice}
		if c := unprivileged(); c != nil {
			for _, g := range c.Groups {
				j.Groups = append(j.Groups, int(g))
			}
		}
	}
	return j.Command(jail.Program{Path: binary, Args: args, Env: env, Files: files})
}

// largestFile returns the maximum size, in bytes, of a file that a machine's QEMU writes.
func largestFile(shape turnstone.Shape, hasHome bool) uint64 {
	// the last value exceeds any device state
	size := max(int64(shape.Memory), int64(shape.Disk), 1<<30)
	if hasHome {
		size = max(size, substrate.SlotSize)
	}
	return uint64(size)
}

// seal removes the names of its own descriptors from the machine's QEMU. QEMU has opened its files
// when it answers on its monitor.
func (m *machine) seal(ctx context.Context) error {
	if m.wall != jailed {
		return nil
	}
	return jail.Seal(ctx, m.PID())
}
