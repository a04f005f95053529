package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/jail"
	"turnstone.dev/turnstone/internal/subprocess"
	"turnstone.dev/turnstone/substrate"
)

// The walls around QEMU.
const (
	jailed   host.Wall = "namespaces" // an empty root, no rights, no network, no other processes
	filtered host.Wall = "filter"     // only a filter of system calls, for hosts without namespaces
	open     host.Wall = "none"       // only QEMU's own filter, if the host allows nothing else
)

// A Jail describes QEMU's confinement here, and why it is not better.
type Jail host.Jail

// Namespaces reports whether QEMU has its own namespaces.
func (j Jail) Namespaces() bool { return j.Wall == jailed }

// proofLimit bounds the time of a QEMU that only prints its version.
const proofLimit = 20 * time.Second

// Jail returns QEMU's confinement. It is determined once, by starting QEMU confined.
func (s *Substrate) Jail() Jail { return s.wall }

func (s *Substrate) findWall(ctx context.Context) (Jail, error) {
	j, err := host.FindJail(ctx, s.home, "qemu-jail.json", s.binary+"|"+s.version,
		[]host.Wall{jailed, filtered, open}, s.tryWall)
	if err != nil {
		err = turnstone.NewError("qemu.new", turnstone.KindCanceled, s.binary, err)
	}
	return Jail(j), err
}

// tryWall starts a QEMU behind w that prints its version.
func (s *Substrate) tryWall(ctx context.Context, w host.Wall) error {
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
func (s *Substrate) command(w host.Wall, shape turnstone.Shape, hasHome bool, args []string,
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
