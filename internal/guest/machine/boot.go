// Package machine brings up a sandbox's guest around its agent: as PID 1 of a microVM (Boot) or of
// a gVisor container (BootGVisor). It mounts disks and layers, sets up the network, and gives each
// clone its own identity.
package machine

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/guest/kernel/need"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/wire"
)

// Names that the host and the guest share.
const (
	portName   = "turnstone.agent"        // of the virtio-serial port
	RootSerial = "root"                   // of the block device with the template's root image
	ReadyLine  = "turnstone-agent: ready" // on the console, when the agent waits for the host
	// on the console after the agent's name, before the reason of a failed start
	FailedWord = "failed: "
)

// Paths before the switch to the sandbox's own root.
const (
	lowerDir   = "/lower"   // the template's root image
	upperDir   = "/scratch" // the disk that takes the writes
	mergedDir  = "/merged"
	warmDir    = "/warm"
	skelDir    = "/skel"          // below the template: mount points that belong to no state
	layerDir   = "/layer"         // with a folder for each layer's image
	stackDir   = "/stack"         // the root over layers
	homeDir    = "/home"          // the home disk
	deviceWait = 20 * time.Second // emulated machines probe devices slowly
)

// Boot brings up a microVM's guest and serves its host until the connection ends, then turns the
// machine off. It must run as PID 1 and does not return.
//
// Boot stops before clones begin to differ: the host takes its snapshot when the ready line is on
// the console, and sends first after a restore.
//
// Two words on the kernel's command line move work before the snapshot, which shortens each
// restore, in which every instruction is cold. turnstone.scratch=SERIAL names the disk for the
// writes: it is then mounted before the snapshot, so each clone must get a copy of that disk as of
// the snapshot. turnstone.net=ADDRESS,GATEWAY[,DNS…] sets up the network before the snapshot.
func Boot() {
	err := boot()
	if err != nil {
		consoleLog(failedLine(err))
	}
	powerOff()
}

// failedLine returns the line that the host shows for a failed start.
func failedLine(err error) string {
	line := FailedWord + err.Error()
	if hint := turnstone.HintOf(err); hint != "" {
		line += "; " + hint
	}
	return line
}

func boot() error {
	keepSignals()
	mounts := mountKernel(kernelMounts, func(string) bool { return false })
	cmdline, _ := os.ReadFile("/proc/cmdline") // written by the host
	strict := strictOf(string(cmdline))
	loadModules("/modules", strict.early)
	is := askKernel()
	is.open = runningKernel.open()
	if nonce := checks(string(cmdline)); nonce != "" {
		// kernel messages would interleave with the report's lines
		_, _ = unix.Klogctl(unix.SYSLOG_ACTION_CONSOLE_OFF, nil)
		runningKernel.report(nonce, is, consoleLog)
		drainConsole()
		return nil
	}
	if mounts != nil {
		return mounts
	}
	if strict == nil { // whose drivers are not all loaded yet
		if err := runningKernel.lacks(kindOf(string(cmdline))); err != nil {
			return err
		}
	}
	if err := loopbackUp(); err != nil {
		consoleLog("loopback: " + err.Error())
	}
	m := &machine{base: -1, names: diskNames(string(cmdline)), kernel: is, strict: strict}
	if strict != nil {
		var err error
		if m.names, err = strict.open(); err != nil {
			return err
		}
	}
	if err := m.newSpace(); err != nil {
		return err
	}
	if err := m.newGroups(); err != nil {
		return err
	}
	if err := m.mountRoot(); err != nil {
		return err
	}
	if err := m.prepare(parseParams(string(cmdline))); err != nil {
		return err
	}
	return m.serve(func() (io.ReadWriteCloser, error) { return openChannel(string(cmdline)) },
		consoleLog)
}

// ownFDs is procFDs in the agent's own /proc, which is the agent's working directory: see
// process.Space.
const ownFDs = "self/fd/"

// serve creates the agent of a booted machine, reports that it is ready, and answers the host until
// the connection ends.
func (m *machine) serve(open func() (io.ReadWriteCloser, error), say func(line string)) error {
	opt := agent.Options{Groups: m.groups, Reap: m.reap, Space: m.space, FDs: ownFDs,
		Tracing: agent.NewTracing()}
	if m.strict != nil {
		return m.serveScript(m.own(opt), open, say)
	}
	warm := warmUp
	if m.mounted != "" {
		warm = exercise
	}
	if err := warm(opt); err != nil {
		say("warm-up: " + err.Error()) // a failure only makes clones slower
	}
	port, err := open()
	if err != nil {
		return err
	}
	a, err := agent.New(m.own(opt))
	if err != nil {
		return err
	}
	debug.FreeOSMemory()
	unix.Sync() // the host keeps the disk's current content
	say("ready")
	err = a.Serve(context.Background(), port)
	m.groups.KillAll()
	unix.Sync()
	return err
}

// own returns opt with the functions of m.
func (m *machine) own(opt agent.Options) agent.Options {
	m.disks.Open = ownFDs
	opt.Configure, opt.Renew, opt.Disks, opt.Card = m.configure, m.renew, &m.disks, &m.card
	return opt
}

// params are the agent's parameters on the kernel's command line: they are common to all clones of
// the snapshot, so that the agent can apply them before it.
type params struct {
	scratch string               // turnstone.scratch=SERIAL
	network *wire.SandboxNetwork // turnstone.net=ADDRESS,GATEWAY[,DNS…]
}

func parseParams(cmdline string) params {
	var p params
	p.scratch, _ = word(cmdline, "turnstone.scratch=")
	v, _ := word(cmdline, "turnstone.net=")
	if f := strings.Split(v, ","); len(f) >= 2 {
		p.network = &wire.SandboxNetwork{Address: f[0], Gateway: f[1], DNS: f[2:]}
	}
	return p
}

// keepSignals receives the signals that end a Go program: any process of the guest may send them,
// and the end of PID 1 ends the machine. They are received and not ignored, because children
// inherit ignored signals.
func keepSignals() {
	ch := make(chan os.Signal, 16)
	for sig := syscall.Signal(1); sig < 65; sig++ {
		switch sig {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG:
		default:
			signal.Notify(ch, sig)
		}
	}
	go func() {
		for range ch {
		}
	}()
}

// A kernelMount is one of the kernel's virtual file systems.
type kernelMount struct {
	dir, fs, data string
	flags         uintptr
}

const noFiles = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// kernelMounts are the mounts of a microVM.
var kernelMounts = []kernelMount{
	{"/proc", "proc", "", noFiles},
	{"/sys", "sysfs", "", noFiles},
	{"/dev", "devtmpfs", "mode=0755", unix.MS_NOSUID},
	{"/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666", unix.MS_NOSUID | unix.MS_NOEXEC},
	{"/dev/shm", "tmpfs", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	{"/run", "tmpfs", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
	{"/sys/fs/cgroup", "cgroup2", "", noFiles},
}

// mountKernel mounts the kernel's virtual file systems, except at existing mounts. It mounts as
// many as possible, and returns the first error.
func mountKernel(mounts []kernelMount, mounted func(dir string) bool) error {
	var failed error
	for _, m := range mounts {
		if mounted(m.dir) {
			continue
		}
		if err := m.mount(); err != nil && failed == nil {
			failed = err
		}
	}
	if failed != nil {
		return failed
	}
	if err := os.WriteFile(bootIDFile, []byte(strings.Repeat("0", 36)+"\n"), 0o444); err != nil {
		return err
	}
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, "/dev/"+name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// mount mounts the file system. A file system that the kernel does not support is a lackError.
func (m kernelMount) mount() error {
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return err
	}
	err := unix.Mount(m.fs, m.dir, m.fs, m.flags, m.data)
	if n, known := need.Of(m.fs); known && err == unix.ENODEV {
		return &lackError{n}
	}
	if err != nil && err != unix.EBUSY {
		return &os.PathError{Op: "mount", Path: m.dir, Err: err}
	}
	return nil
}

// newSpace creates the namespace of the machine's processes, and shows its /proc.
func (m *machine) newSpace() (err error) {
	m.reap = process.NewInitReaper()
	m.space, err = process.NewSpace(m.reap, "/proc", showBootID)
	return err
}

// showBootID replaces the kernel's boot ID with the clone's own.
func showBootID() error {
	err := unix.Mount(bootIDFile, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, "")
	if err != nil && err != unix.ENOENT { // root in the sandbox may have removed it
		return &os.PathError{Op: "mount", Path: "boot_id", Err: err}
	}
	return nil
}

// loadModules loads the kernel modules of a folder in the order of their names, and removes their
// files, which use memory. It leaves those that want rejects. It only logs errors, because a kernel
// may have a driver built in that is a module of another kernel.
func loadModules(dir string, want func(name string) bool) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		consoleLog("modules: " + err.Error())
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !strings.HasSuffix(path, ".ko") || !want(e.Name()) {
			continue
		}
		if err := loadModule(path); err != nil && !errors.Is(err, unix.EEXIST) {
			consoleLog("module " + e.Name() + ": " + err.Error())
		}
		_ = os.Remove(path)
	}
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// newGroups sets default limits, so that the agent keeps enough resources to work and to report to
// the host, whatever the steps do.
func (m *machine) newGroups() (err error) {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return err
	}
	total := int64(si.Totalram) * int64(si.Unit)
	reserve := 24<<20 + total/20
	// A working process needs about 1 MiB, and a large fork bomb takes long to kill under
	// emulation.
	pids := min(4096, max(512, total>>20))
	if m.groups, err = process.NewGroups("/sys/fs/cgroup", total-reserve, pids); err == nil {
		m.groups.In(m.space)
	}
	return err
}

// mountRoot mounts the template's root image.
func (m *machine) mountRoot() error {
	dev, err := m.blockDevice(RootSerial, deviceWait)
	if err != nil {
		return err
	}
	for _, dir := range []string{lowerDir, upperDir, mergedDir, warmDir, layerDir, stackDir,
		homeDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(dev, lowerDir, "erofs", unix.MS_RDONLY|unix.MS_NOATIME, ""); err != nil {
		return &os.PathError{Op: "mount", Path: dev, Err: err}
	}
	return nil
}

// blockDevice finds the block device with this serial number. It waits for the device, because
// there is no udev and drivers probe asynchronously.
func (m *machine) blockDevice(serial string, wait time.Duration) (string, error) {
	return poll(wait, "a disk with the serial number "+serial, func() string {
		disks, _ := os.ReadDir("/sys/block")
		for _, d := range disks {
			if isDisk(d.Name()) && diskSerial(d.Name(), m.names) == serial {
				return existing("/dev/" + d.Name())
			}
		}
		return ""
	})
}

// openPort opens the virtio-serial port with this name.
func openPort(name string) (io.ReadWriteCloser, error) {
	path, err := poll(deviceWait, "a virtio-serial port called "+name, func() string {
		ports, _ := os.ReadDir("/sys/class/virtio-ports")
		var buf [128]byte
		for _, p := range ports {
			n, err := process.ReadSmall("/sys/class/virtio-ports/"+p.Name()+"/name", buf[:])
			if err == nil && strings.TrimSpace(string(buf[:n])) == name {
				return existing("/dev/" + p.Name())
			}
		}
		return ""
	})
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return &port{f: f}, nil
}

func existing(path string) string {
	if _, err := os.Lstat(path); err != nil {
		return ""
	}
	return path
}

func poll(wait time.Duration, what string, find func() string) (string, error) {
	for deadline := time.Now().Add(wait); ; time.Sleep(2 * time.Millisecond) {
		if path := find(); path != "" {
			return path, nil
		}
		if time.Now().After(deadline) {
			return "", errors.New("the machine does not have " + what)
		}
	}
}

// A port is the agent's end of a virtio-serial port. Before the host's first byte, an end of file
// only means that the host is not connected yet.
type port struct {
	f     *os.File
	begun bool // used only by the single reader
}

func (p *port) Read(b []byte) (int, error) {
	for {
		n, err := p.f.Read(b)
		if n > 0 {
			p.begun = true
			return n, nil
		}
		if p.begun || !errors.Is(err, io.EOF) {
			return n, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (p *port) Write(b []byte) (int, error) { return p.f.Write(b) }
func (p *port) Close() error                { return p.f.Close() }

// consoleLog writes one line to the machine's console.
func consoleLog(line string) {
	f, err := os.OpenFile("/dev/console", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		f = os.Stderr
	} else {
		defer f.Close()
	}
	_, _ = f.WriteString("turnstone-agent: " + line + "\n")
}

// drainConsole waits until the console has sent its output.
func drainConsole() {
	if f, err := os.OpenFile("/dev/console", os.O_WRONLY|unix.O_NOCTTY, 0); err == nil {
		_ = unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1) // tcdrain(3)
		_ = f.Close()
	}
}

// powerOff ends the machine. The host configures it so that a reboot ends it.
func powerOff() {
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}
