package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/shim/guest"
)

// runContainer starts the container's first process, which the helper becomes in namespaces of its
// own, and waits for its end.
func runContainer(id string) (int, error) {
	var c guest.Container
	if err := read(id, "", guest.FileConfig, &c); err != nil {
		report(id, "", err)
		return 1, nil
	}
	if err := enterGroup(id, c.Limits); err != nil {
		report(id, "", err)
		return 1, nil
	}
	flags := uintptr(syscall.CLONE_NEWNS)
	if c.OwnPIDs {
		flags |= syscall.CLONE_NEWPID
	}
	leaveTerminal(c.Process.Terminal)
	said, tell, err := os.Pipe()
	if err != nil {
		report(id, "", err)
		return 1, nil
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"podinit", setup, id},
		&syscall.ProcAttr{Env: []string{},
			Files: []uintptr{0, 1, 2, tell.Fd()}, Sys: sysProcAttr(c.Process.Terminal, flags)})
	_ = tell.Close()
	if err != nil {
		report(id, "", err)
		return 1, nil
	}
	code, err := await(id, "", pid, said)
	if !c.OwnPIDs { // otherwise the kernel has ended the others
		killGroup(id)
	}
	return code, err
}

// await reports the start of a process and waits for its end. The process closes said when it
// executes its program, or writes why it cannot.
func await(id, exec string, pid int, said io.Reader) (int, error) {
	err := os.WriteFile(guest.File(id, exec, guest.FilePID), []byte(strconv.Itoa(pid)), 0o600)
	why, _ := io.ReadAll(io.LimitReader(said, guest.MaxStatus))
	if len(why) > 0 {
		err = errors.New(string(why))
	}
	report(id, exec, err)
	// until it is reaped nobody else has its number
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	_ = os.Remove(guest.File(id, exec, guest.FilePID))
	var s syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(pid, &s, 0, nil); err == nil {
			return statusOf(s), nil
		} else if !errors.Is(err, syscall.EINTR) {
			return 255, err
		}
	}
}

// leaveTerminal gives up the controlling terminal, which the process in the container takes. The
// signals that this sends are not for the helper, and neither are those of the terminal's user.
func leaveTerminal(terminal bool) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM,
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGPIPE)
	if terminal {
		_ = unix.IoctlSetInt(0, unix.TIOCNOTTY, 0)
	}
}

func sysProcAttr(terminal bool, flags uintptr) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Setctty: terminal, Ctty: 0, Cloneflags: flags}
}

// setUp is the container's first process before it executes its program. It returns only an error.
func setUp(id string) error {
	runtime.LockOSThread()
	tell := os.NewFile(3, "report")
	unix.CloseOnExec(3)
	err := become(id)
	_, _ = tell.WriteString(err.Error())
	os.Exit(1)
	return nil
}

func become(id string) error {
	var c guest.Container
	if err := read(id, "", guest.FileConfig, &c); err != nil {
		return err
	}
	if err := makeRoot(id, &c); err != nil {
		return err
	}
	if err := makeDir(&c.Process, true); err != nil {
		return err
	}
	if c.ReadOnlyRoot {
		if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return os.NewSyscallError("remount root", err)
		}
	}
	return execute(&c.Process)
}

// execute makes the calling thread the process p. It returns only an error.
func execute(p *guest.Process) error {
	path, err := prepare(p)
	if err != nil {
		return err
	}
	if err := drop(p); err != nil {
		return err
	}
	return &os.PathError{Op: "exec", Path: p.Args[0], Err: syscall.Exec(path, p.Args, p.Env)}
}

// prepare gives the calling thread the process's directory, limits and umask, and returns the path
// of its program in its root.
func prepare(p *guest.Process) (string, error) {
	for _, l := range p.Rlimits {
		if err := unix.Setrlimit(l.Resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}); err != nil {
			return "", fmt.Errorf("rlimit %d: %w", l.Resource, err)
		}
	}
	if p.OOMScoreAdj != nil { // not every kernel has it
		_ = os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(*p.OOMScoreAdj)), 0)
	}
	umask := 0o022
	if p.Umask != nil {
		umask = int(*p.Umask)
	}
	unix.Umask(umask)
	if err := unix.Chdir(p.Cwd); err != nil {
		return "", &os.PathError{Op: "chdir", Path: p.Cwd, Err: err}
	}
	ownStreams(p)
	if err := addAccount(p, openInRoot); err != nil {
		return "", err
	}
	return lookPath(p.Args[0], p.Env)
}

// lookPath finds a program as execvp(3) does, with the variables of the process.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	search := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			search = v
		}
	}
	for _, dir := range filepath.SplitList(search) {
		path := filepath.Join(dir, name)
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG &&
			st.Mode&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", name)
}

// drop gives the calling thread the process's user and takes away all capabilities that it may not
// have. It works on the thread alone, which then executes the program or forks.
func drop(p *guest.Process) error {
	may := map[int]bool{}
	for _, c := range p.Capabilities {
		may[c] = true
	}
	for c := range unix.CAP_LAST_CAP + 1 {
		if !may[c] {
			_ = unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0) // a kernel has fewer
		}
	}
	groups := p.Groups
	var first uintptr
	if len(groups) > 0 {
		first = uintptr(ptr(groups))
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), first, 0); errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}
	gid, uid := uintptr(p.GID), uintptr(p.UID)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); errno != 0 {
		return os.NewSyscallError("setresgid", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	if p.UID == 0 {
		if err := limitCaps(may); err != nil {
			return err
		}
	}
	if p.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl", err)
		}
	}
	return nil
}

// limitCaps sets root's capabilities to those in may, and makes none inheritable.
func limitCaps(may map[int]bool) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for c := range may {
		if c >= 0 && c < 64 {
			data[c/32].Effective |= 1 << (c % 32)
			data[c/32].Permitted |= 1 << (c % 32)
		}
	}
	var have [2]unix.CapUserData
	if err := unix.Capget(&hdr, &have[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	for i := range data {
		data[i].Permitted &= have[i].Permitted
		data[i].Effective &= have[i].Permitted
	}
	return os.NewSyscallError("capset", unix.Capset(&hdr, &data[0]))
}
