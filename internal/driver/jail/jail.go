//go:build linux && amd64

// Package jail starts a program of the host in its own namespaces, without any rights, and with a
// root that contains only named files. It is for programs that a sandbox may break out into: an
// attacker who breaks out finds an empty place.
package jail

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Nobody is the ID of the user whose rights a root's jail has.
const Nobody = 65534

// A Jail describes what a program gets. The zero value has namespaces and nothing in them.
type Jail struct {
	// Bare jails have no namespaces, for hosts that do not allow namespaces. The program then sees
	// the host's files, with the rights of the user, or of nobody if root starts it.
	Bare bool
	// Show are paths of the host that the jail shows under the same name, read-only: folders,
	// files, and symbolic links. Paths that do not exist on the host are skipped.
	Show []string
	// Devices are device nodes of the host that the program can open, all in one folder. If the
	// kernel can create them, root's program gets its own nodes instead (see OwnsDevices): the
	// program may open what the caller may open.
	Devices []string
	// Places are files and folders that the program finds under other names than on the host. A
	// folder comes before the places in it. Places need namespaces.
	Places []Place
	// Dir is the folder that the program starts in; empty: /.
	Dir string
	// UnixSockets allows sockets of the family AF_UNIX. In namespaces the program can connect only
	// to sockets in its Places.
	UnixSockets bool
	// Sealed jails have no ownFiles from the start.
	Sealed bool
	// Groups are the host's group IDs of root's program, for devices of the host.
	Groups []int
	// FileSize bounds the files that the program writes, in bytes; 0: any size.
	FileSize uint64
	// Threads bounds the program's threads; 0: any number. It needs namespaces.
	Threads uint64
}

// A Program is the program in a jail.
type Program struct {
	Path  string // absolute, without symbolic links
	Args  []string
	Env   []string
	Files []*os.File // from descriptor 3 on; nil is a closed descriptor
}

// flags are the flags that create the namespaces.
const flags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// ownFiles is the folder where the program sees its own descriptors as files until Seal.
const ownFiles = "/proc/self/fd"

// Command returns the command that starts p, with its SysProcAttr and its ExtraFiles. The process
// becomes p when the jail is complete; an earlier failure is on its standard error, see Failure.
// The process waits until the caller calls release after the start.
func (j Jail) Command(p Program) (cmd *exec.Cmd, release func(), err error) {
	in := inherited{own: 3 + len(p.Files), start: 4 + len(p.Files), devices: -1, places: -1}
	waits, start, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	made := []*os.File{waits}
	if os.Geteuid() == 0 && !j.Bare {
		devices, places, err := j.inRoot()
		if err != nil {
			closeAll([]*os.File{waits, start})
			return nil, nil, err
		}
		if devices != nil {
			in.devices, j.Groups = in.own+1+len(made), nil
			made = append(made, devices)
		}
		in.places = in.own + 1 + len(made)
		made = append(made, places...)
	}
	drop := func() { closeAll(append(made, start)) }
	code, err := j.program(p, in)
	if err != nil {
		drop()
		return nil, nil, err
	}
	first, err := executable(code.elf())
	if err != nil {
		drop()
		return nil, nil, err
	}
	cmd = exec.Command(fmt.Sprintf("%s/%d", ownFiles, in.own))
	cmd.Args = []string{filepath.Base(p.Path)}
	cmd.ExtraFiles = append(append(append([]*os.File{}, p.Files...), first), made...)
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = j.attributes()
	return cmd, func() { _, _ = start.WriteString("/"); _ = first.Close(); drop() }, nil
}

// attributes returns how the process starts. The process is killed with the thread that starts it;
// as the first process of its PID namespace it takes all others in the namespace with it.
func (j Jail) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	root := os.Geteuid() == 0
	if j.Bare {
		if root {
			a.Credential = &syscall.Credential{Uid: Nobody, Gid: Nobody}
			for _, g := range j.Groups {
				a.Credential.Groups = append(a.Credential.Groups, uint32(g))
			}
		}
		return a
	}
	a.Cloneflags = flags
	uid, gid := os.Getuid(), os.Getgid()
	if root {
		uid, gid = Nobody, Nobody
		a.Credential = &syscall.Credential{} // the namespace's root, which is nobody outside
		a.GidMappingsEnableSetgroups = true
	}
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	if root {
		for i, g := range j.Groups {
			a.GidMappings = append(a.GidMappings, syscall.SysProcIDMap{ContainerID: 1 + i,
				HostID: g, Size: 1})
			a.Credential.Groups = append(a.Credential.Groups, uint32(1+i))
		}
	}
	return a
}

// inherited are descriptors that the process starts with and its program does not get.
type inherited struct {
	own     int // the process's executable
	start   int // the pipe of await
	devices int // the file system of its devices; negative: the host's device nodes
	places  int // the first mount of its places; negative: the host's paths are bound
}

// program returns the process's calls, which create the jail and then start p.
func (j Jail) program(p Program, in inherited) (*program, error) {
	code := new(program)
	code.await(in.start)
	if !j.Bare {
		if err := j.root(code, p.Path, in); err != nil {
			return nil, err
		}
		if err := code.dropRights(); err != nil {
			return nil, err
		}
	}
	j.limit(code)
	code.confine(j.UnixSockets)
	if closeRange() {
		code.call("close_range", unix.SYS_CLOSE_RANGE, uint64(in.own), 1<<32-1, 0)
	} else {
		code.call("fcntl", unix.SYS_FCNTL, uint64(in.own), unix.F_SETFD, unix.FD_CLOEXEC)
	}
	code.execute(p.Path, append([]string{p.Path}, p.Args...), p.Env)
	return code, nil
}

// closeRange reports whether the kernel has close_range(2), by an empty range.
func closeRange() bool { return unix.CloseRange(1<<32-1, 1<<32-1, 0) == nil }

// limit appends the resource limits.
func (j Jail) limit(code *program) {
	set := func(name string, resource int, n uint64) {
		code.call("limit of "+name, unix.SYS_PRLIMIT64, 0, uint64(resource),
			code.values([2]uint64{n, n}), 0)
	}
	set("core dumps", unix.RLIMIT_CORE, 0)
	set("open files", unix.RLIMIT_NOFILE, maxFiles)
	if j.FileSize > 0 {
		set("file size", unix.RLIMIT_FSIZE, j.FileSize)
	}
	// Before Linux 5.14 the limit counts all of the user's processes, in any namespace.
	if j.Threads > 0 && !j.Bare && kernelAtLeast(5, 14) {
		set("threads", unix.RLIMIT_NPROC, j.Threads)
	}
}

const maxFiles = 1024

func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	parts := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, _ := strconv.Atoi(parts[0])
	b, _ := strconv.Atoi(strings.TrimRight(parts[1], "+-abcdefghijklmnopqrstuvwxyz"))
	return a > major || a == major && b >= minor
}

// lockedRoot contains bits of prctl(PR_SET_SECUREBITS) (capabilities(7)): root has no special
// rights, and this cannot be undone.
const lockedRoot = 1<<0 | 1<<1 | // SECBIT_NOROOT
	1<<2 | 1<<3 | // SECBIT_NO_SETUID_FIXUP
	1<<5 | // SECBIT_KEEP_CAPS_LOCKED
	1<<6 | 1<<7 // SECBIT_NO_CAP_AMBIENT_RAISE

// dropRights appends the calls that irrevocably give up the capabilities in the user namespace.
func (p *program) dropRights() error {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return err
	}
	last, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return err
	}
	p.call("securebits", unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, lockedRoot, 0, 0, 0)
	for c := range last + 1 {
		p.call("capability "+strconv.Itoa(c), unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uint64(c), 0, 0,
			0)
	}
	header := p.values([2]uint32{unix.LINUX_CAPABILITY_VERSION_3, 0})
	p.call("capset", unix.SYS_CAPSET, header, p.values([6]uint32{}))
	return nil
}

// executable returns a file in memory with an executable that every user may run.
func executable(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("turnstone-jail", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("turnstone-jail", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "jail")
	if _, err = f.Write(b); err == nil {
		err = f.Chmod(0o555)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// FailureOf is Failure for a process whose exec.Cmd's Wait returned err.
func FailureOf(stderr string, wait error) error {
	var exit *exec.ExitError
	if !errors.As(wait, &exit) {
		return nil
	}
	return startFailure(stderr, exit.ExitCode())
}

// marker begins the message that a process writes to standard error when its jail fails.
const marker = "turnstone-jail: "

// startFailure returns why a jail could not be created, from the process's standard error and exit
// status; nil if the jail did not fail.
func startFailure(stderr string, status int) error {
	what, ok := strings.CutPrefix(strings.TrimSpace(stderr), marker)
	if !ok || strings.ContainsRune(what, '\n') {
		return nil
	}
	return fmt.Errorf("its jail: %s: %w", what, syscall.Errno(status))
}
