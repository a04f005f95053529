package firecracker

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/jail"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/substrate"
)

// The walls around Firecracker.
const (
	byJailer host.Wall = "jailer" // Firecracker's jailer, which needs root
	jailed   host.Wall = "jail"   // package jail
	noWall   host.Wall = "none"   // only Firecracker's filters of system calls
)

// A Jail describes Firecracker's confinement here, and why it is not better.
type Jail host.Jail

// Confined reports whether Firecracker runs in a jail.
func (j Jail) Confined() bool { return j.Wall == byJailer || j.Wall == jailed }

// Jail returns Firecracker's confinement.
func (s *Substrate) Jail() Jail { return s.wall }

// proofLimit bounds the time of a Firecracker that only prints its version.
const proofLimit = 20 * time.Second

// findWall determines whether Firecracker runs in a jail of package jail, by starting a jailed
// Firecracker that prints its version.
func (s *Substrate) findWall(ctx context.Context) (Jail, error) {
	j, err := host.FindJail(ctx, s.home, "firecracker-jail.json", s.binary+"|"+s.version,
		[]host.Wall{jailed, noWall}, s.tryJail)
	if err != nil {
		err = turnstone.NewError("firecracker.new", turnstone.KindCanceled, s.binary, err)
	}
	return Jail(j), err
}

// tryJail starts a jailed Firecracker that prints its version.
func (s *Substrate) tryJail(ctx context.Context, _ host.Wall) error {
	c, err := newCell(ctx, s.home, turnstone.NewSandboxID())
	if err != nil {
		return err
	}
	defer c.remove()
	m := newMachine("version", c)
	if err := s.startInJail(ctx, m, turnstone.Shape{}, nil, []string{"--version"}); err != nil {
		return err
	}
	select {
	case <-m.Done():
	case <-ctx.Done():
	case <-time.After(proofLimit):
	}
	_ = m.Kill()
	<-m.Done()
	line, _, _ := strings.Cut(m.Console.String(), "\n")
	switch said := console.Printable(strings.TrimSpace(line)); {
	case said == s.version:
		return nil
	case m.Err() != nil && line == "":
		return m.Err()
	default:
		return fmt.Errorf("the program reports there that it is %q", console.Clip(said, 80))
	}
}

// workDir is Firecracker's working folder in a jail, and workName its name in the cell.
const (
	workDir  = "/machine"
	workName = "work"
)

// startInJail runs Firecracker in its own namespaces, in a root that contains the machine's files
// and KVM's device, read-only except for the files that the machine writes.
func (s *Substrate) startInJail(ctx context.Context, m *machine, shape turnstone.Shape,
	files []placed, args []string) error {
	work, out := filepath.Join(m.cell.dir, workName), filepath.Join(m.cell.dir, outName)
	err := os.Mkdir(work, 0o700)
	if os.Geteuid() == 0 {
		m.owner = nobody
		err = errors.Join(err, os.Chown(work, nobody, nobody), os.Chown(out, nobody, nobody))
	}
	if err != nil {
		return err
	}
	if m.cell.work, err = os.Open(work); err != nil {
		return err
	}
	j := jail.Jail{Dir: workDir, UnixSockets: true, Sealed: true, Show: shown(s.binary),
		FileSize: largestFile(shape), Threads: uint64(shape.CPUs) + moreThreads,
		Places: []jail.Place{{At: workDir, Host: work, Write: true},
			{At: filepath.Join(workDir, outName), Host: out, Write: true}}}
	for _, f := range files {
		p, err := f.place(ctx, m.cell.dir)
		if err != nil {
			return fmt.Errorf("the jail: %s: %w", f.name, err)
		}
		j.Places = append(j.Places, p)
	}
	for _, device := range []string{kvm.Device, "/dev/urandom"} {
		if _, err := os.Lstat(device); err == nil {
			j.Devices = append(j.Devices, device)
		}
	}
	cmd, release, err := j.Command(jail.Program{Path: s.binary, Args: args, Env: environment()})
	if err != nil {
		return fmt.Errorf("the jail: %w", err)
	}
	defer release()
	return m.spawn(cmd, nil)
}

// place returns the file's path in a jail.
func (f placed) place(ctx context.Context, spare string) (jail.Place, error) {
	p := jail.Place{At: filepath.Join(workDir, f.name), Host: f.path, Write: f.written}
	if f.path == "" {
		p.Zeros = substrate.SlotSize
		return p, nil
	}
	var err error
	if os.Geteuid() == 0 {
		p.Host, err = f.owned(ctx, spare)
	}
	return p, err
}

// moreThreads is the number of Firecracker's threads in addition to one for each CPU.
const moreThreads = 16

// largestFile returns the maximum size, in bytes, of a file that a machine's Firecracker writes: a
// write beyond it ends Firecracker, and the guest may try each sector of its disks.
func largestFile(shape turnstone.Shape) uint64 {
	return uint64(max(mebibytes(shape.Memory)<<20, int64(shape.Disk), substrate.SlotSize))
}

// shown returns the host's paths that a Firecracker sees: none, or libraries if it is not static,
// as releases are.
func shown(binary string) []string {
	f, err := elf.Open(binary)
	if err != nil {
		return nil
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib",
				"/etc/ld.so.cache"}
		}
	}
	return nil
}
