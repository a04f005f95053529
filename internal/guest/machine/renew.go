package machine

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/wire"
)

// renew implements Sandbox.renew for the machine. The order matters as in configure.
func (m *machine) renew(p *wire.SandboxRenewParams) (*wire.SandboxRenewResult, error) {
	res := new(wire.SandboxRenewResult)
	const op = wire.MethodSandboxRenew
	own := p.Hostname != "" || p.MachineID != ""
	check := wire.SandboxConfigureParams{Entropy: p.Entropy, Time: p.Time, Hostname: p.Hostname,
		MachineID: p.MachineID}
	if !own {
		if p.Network != nil {
			return res, agent.Invalid(op, "network", "it comes with a hostname and a machineId")
		}
		check.Hostname, check.MachineID = "same", "00000000000000000000000000000000"
	}
	check.Scratch = "same"
	now, err := checkConfigure(&check)
	if err != nil {
		return res, err
	}
	if res.Reseeded, err = m.refresh(p.Entropy, now); err != nil {
		return res, err
	}
	if own {
		if err := m.rename(p); err != nil {
			return res, err
		}
		res.BootID, err = newBootID()
	} else {
		res.BootID, err = bootID()
	}
	if err != nil {
		return res, agent.Failed("the boot id", err)
	}
	return res, nil
}

// rename gives a clone its own identity. Unlike configure it keeps the entries that the sandbox's
// user may have added to the files meanwhile.
func (m *machine) rename(p *wire.SandboxRenewParams) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return agent.Failed("the host name", err)
	}
	before := unix.ByteSliceToString(u.Nodename[:])
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return agent.Failed("the host name", err)
	}
	files := [][2]string{{"/etc/hostname", p.Hostname + "\n"},
		{"/etc/machine-id", p.MachineID + "\n"}}
	if b, err := readBounded("/etc/hosts", maxHosts); err == nil {
		if text := renameIn(string(b), before, p.Hostname); text != string(b) {
			files = append(files, [2]string{"/etc/hosts", text})
		}
	}
	if p.Network != nil && m.network != nil && !sameNetwork(p.Network, m.network) {
		if err := networkUp(p.Network); err != nil {
			return err
		}
		m.network = p.Network
		files = append(files, [2]string{"/etc/resolv.conf", resolvConf(p.Network)})
	}
	for _, f := range files {
		err := overwrite(f[0], f[1])
		// its user made it a link, whose target the agent must not write
		if errors.Is(err, unix.ELOOP) {
			if err = os.Remove(f[0]); err == nil {
				err = overwrite(f[0], f[1])
			}
		}
		if err != nil {
			return agent.Failed("the root file system", err)
		}
	}
	return nil
}

// maxHosts bounds the /etc/hosts in which a clone's name is replaced, in bytes.
const maxHosts = 1 << 20

// renameIn replaces the host's own name in an /etc/hosts, at the place where configure wrote it.
func renameIn(hosts, before, after string) string {
	const own = "127.0.1.1\t"
	lines := strings.SplitAfter(hosts, "\n")
	for i, line := range lines {
		if strings.TrimSuffix(line, "\n") == own+before {
			lines[i] = own + after + strings.TrimPrefix(line, own+before)
		}
	}
	return strings.Join(lines, "")
}

// readBounded reads a file without Go's poller, which would be asked about it: that is a part of each
// claim, and each system call counts in gVisor.
func readBounded(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 4<<10)
	for len(b) <= limit {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, os.NewSyscallError("read", err)
		case n == 0:
			return b, nil
		}
		if b = b[:len(b)+max(n, 0)]; len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
	}
	return nil, errors.New("too long")
}

// bootID returns the boot ID that newBootID has written.
func bootID() (string, error) {
	var buf [64]byte
	n, err := process.ReadSmall(bootIDFile, buf[:])
	return strings.TrimSpace(string(buf[:n])), err
}
