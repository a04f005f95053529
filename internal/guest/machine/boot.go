// Package machine brings a sandbox's guest up around its agent: as PID 1 of a microVM (Boot) or of a
// gVisor container (BootGVisor). It mounts disks and layers, sets up the network, and gives each clone
// its own identity.
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

// Names that the host and the guest agree on.
const (
	PortName   = "turnstone.agent"        // of the virtio-serial port
	RootSerial = "root"                   // of the block device with the template's root image
	ReadyLine  = "turnstone-agent: ready" // on the console, when the agent waits for the host
	FailedWord = "failed: "               // on the console after the agent's name: why there will be no such line
)

// Where things stand before the sandbox's own root takes their place.
const (
	lowerDir   = "/lower"   // the template's root image
	upperDir   = "/scratch" // the disk that takes the writes
	mergedDir  = "/merged"
	warmDir    = "/warm"
	skelDir    = "/skel"          // below the template: mount points that are in no state
	layerDir   = "/layer"         // with a folder for each layer's image
	stackDir   = "/stack"         // the root over layers
	homeDir    = "/home"          // the home disk
	deviceWait = 20 * time.Second // emulated machines probe slowly
)

// Boot brings a microVM's guest up and serves its host until the connection ends,
// then turns the machine off. It must be PID 1 and does not return.
//
// It stops before anything differs between clones: the host takes its snapshot
// when the ready line is on the console, and speaks first after a restore.
//
// Two words on the kernel's command line let it do more before the snapshot, and
// so less after each restore, where every instruction is cold.
// turnstone.scratch=SERIAL names the disk for the writes: it is then mounted
// before, so each clone must get a copy of that disk as it was when the snapshot
// was taken. turnstone.net=ADDRESS,GATEWAY[,DNS…] sets the network up before.
func Boot() {
	err := boot()
	if err != nil {
		consoleLog(failedLine(err))
	}
	powerOff()
}

// failedLine is what the host shows of a start that failed.
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
	loadModules("/modules")
	cmdline, _ := os.ReadFile("/proc/cmdline") // the host wrote it
	is := askKernel()
	is.open = runningKernel.open()
	if nonce := checks(string(cmdline)); nonce != "" {
		_, _ = unix.Klogctl(unix.SYSLOG_ACTION_CONSOLE_OFF, nil) // its messages would fall into the report's lines
		runningKernel.report(nonce, is, consoleLog)
		return nil
	}
	if mounts != nil {
		return mounts
	}
	if err := runningKernel.lacks(kindOf(string(cmdline))); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		consoleLog("loopback: " + err.Error())
	}
	m := &machine{base: -1, names: diskNames(string(cmdline)), kernel: is}
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
	return m.serve(func() (io.ReadWriteCloser, error) { return openChannel(string(cmdline)) }, consoleLog)
}

// ownFDs is procFDs in the agent's own /proc, where the agent is: see process.Space.
const ownFDs = "self/fd/"

// serve makes the agent of a machine that is up, says that it is, and answers the
// host until the connection ends.
func (m *machine) serve(open func() (io.ReadWriteCloser, error), say func(line string)) error {
	opt := agent.Options{Groups: m.groups, Reap: m.reap, Space: m.space, FDs: ownFDs, Tracing: agent.NewTracing()}
	warm := warmUp
	if m.mounted != "" {
		warm = exercise
	}
	if err := warm(opt); err != nil {
		say("warm-up: " + err.Error()) // slower, and not wrong
	}
	port, err := open()
	if err != nil {
		return err
	}
	m.disks.Open = ownFDs
	opt.Configure, opt.Renew, opt.Disks, opt.Card = m.configure, m.renew, &m.disks, &m.card
	a, err := agent.New(opt)
	if err != nil {
		return err
	}
	debug.FreeOSMemory()
	unix.Sync() // the host keeps the disk as it is now
	say("ready")
	err = a.Serve(context.Background(), port)
	m.groups.KillAll()
	unix.Sync()
	return err
}

// params are what the kernel's command line tells the agent: what every clone of
// the snapshot will have in common, so that it can be set up before.
type params struct {
	scratch string               // turnstone.scratch=SERIAL
	network *wire.SandboxNetwork // turnstone.net=ADDRESS,GATEWAY[,DNS…]
}

func parseParams(cmdline string) params {
	var p params
	for _, word := range strings.Fields(cmdline) {
		if v, ok := strings.CutPrefix(word, "turnstone.scratch="); ok {
			p.scratch = v
		}
		if v, ok := strings.CutPrefix(word, "turnstone.net="); ok {
			if f := strings.Split(v, ","); len(f) >= 2 {
				p.network = &wire.SandboxNetwork{Address: f[0], Gateway: f[1], DNS: f[2:]}
			}
		}
	}
	return p
}

// keepSignals makes signals that end a Go program harmless: any process of the
// guest may send them, and the end of PID 1 is the end of the machine. They are
// received, not ignored, since a child would inherit ignoring them.
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

// A kernelMount is a file system that shows what the kernel offers.
type kernelMount struct {
	dir, fs, data string
	flags         uintptr
}

const noFiles = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// kernelMounts are those of a microVM.
var kernelMounts = []kernelMount{
	{"/proc", "proc", "", noFiles},
	{"/sys", "sysfs", "", noFiles},
	{"/dev", "devtmpfs", "mode=0755", unix.MS_NOSUID},
	{"/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666", unix.MS_NOSUID | unix.MS_NOEXEC},
	{"/dev/shm", "tmpfs", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	{"/run", "tmpfs", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
	{"/sys/fs/cgroup", "cgroup2", "", noFiles},
}

// mountKernel mounts what the kernel offers, but where there is something already. It
// mounts all that it can, and returns the first failure.
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
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, "/dev/"+name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// mount mounts it. A file system that the kernel does not know is a lackError.
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

// newSpace makes the namespace of the machine's processes, and shows its /proc.
func (m *machine) newSpace() (err error) {
	m.reap = process.NewInitReaper()
	m.space, err = process.NewSpace(m.reap, "/proc", showBootID)
	return err
}

// showBootID puts the clone's own boot ID in the place of the kernel's.
func showBootID() error {
	err := unix.Mount(bootIDFile, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, "")
	if err != nil && err != unix.ENOENT { // root in the sandbox may have removed it
		return &os.PathError{Op: "mount", Path: "boot_id", Err: err}
	}
	return nil
}

// loadModules loads the kernel modules of a folder in the order of their names,
// and removes them: they take up memory. What fails is only said, because a
// kernel may have a driver built in that another has as a module.
func loadModules(dir string) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		consoleLog("modules: " + err.Error())
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !strings.HasSuffix(path, ".ko") {
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
	defer func() { _ = f.Close() }()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// newGroups sets default limits, so that the agent keeps what it needs to work
// and to tell the host what happened, whatever the steps do.
func (m *machine) newGroups() (err error) {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return err
	}
	total := int64(si.Totalram) * int64(si.Unit)
	reserve := 24<<20 + total/20
	// A process that does anything takes about 1 MiB, and a fork bomb that is
	// allowed to grow large takes long to kill under emulation.
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
	for _, dir := range []string{lowerDir, upperDir, mergedDir, warmDir, skelDir + contextDir, layerDir, stackDir, homeDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(dev, lowerDir, "erofs", unix.MS_RDONLY|unix.MS_NOATIME, ""); err != nil {
		return &os.PathError{Op: "mount", Path: dev, Err: err}
	}
	return nil
}

// blockDevice finds the block device with this serial number, which it waits
// for: there is no udev, and drivers probe in their own time.
func (m *machine) blockDevice(serial string, wait time.Duration) (string, error) {
	return poll(wait, "a disk with the serial number "+serial, func() string {
		disks, _ := os.ReadDir("/sys/block")
		for _, d := range disks {
			if strings.HasPrefix(d.Name(), "vd") && diskSerial(d.Name(), m.names) == serial {
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
			n, err := readSmall("/sys/class/virtio-ports/"+p.Name()+"/name", buf[:])
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
			return "", errors.New("the machine has not got " + what)
		}
	}
}

// A port is the agent's end of a virtio-serial port. Until the host has spoken,
// an end of file only means that its side is not connected yet.
type port struct {
	f     *os.File
	begun bool // used by the one reader only
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
		defer func() { _ = f.Close() }()
	}
	_, _ = f.WriteString("turnstone-agent: " + line + "\n")
}

// powerOff ends the machine. The host starts it so that a reboot is an end.
func powerOff() {
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

// readSmall reads the start of a file of the kernel's.
func readSmall(path string, buf []byte) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Read(fd, buf)
}
