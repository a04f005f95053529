package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/internal/guest/script"
)

// memoryDisk begins the name of a block device in memory.
const memoryDisk = "pmem"

// The device that stops the machine (QEMU, docs/specs/pvpanic.txt): its register is the first byte
// of its memory. The machine stops at the instruction that writes stopNow, so that its memory is
// the same each time.
const (
	stopVendor = "0x1b36"
	stopDevice = "0x0011"
	stopNow    = 1
)

// A strict is the part of a deterministic machine that no other machine has.
type strict struct {
	disks   []string // names of the disks in memory, by address
	stop    []byte   // the register that stops the machine
	modules *os.Root // modules that are loaded after the script
	script  *os.File // nil: there is none
}

// strictOf returns nil if the machine is not deterministic.
func strictOf(cmdline string) *strict {
	v, ok := word(cmdline, script.Word)
	if !ok {
		return nil
	}
	return &strict{disks: strings.Split(v, ",")}
}

// early reports whether the module is loaded before the script. The drivers of devices that end in
// the host are loaded after it.
func (s *strict) early(name string) bool {
	if s == nil {
		return true
	}
	_, module, _ := strings.Cut(name, "-")
	for _, prefix := range []string{"virtio", "failover", "net_failover", "vsock", "vmw_", "tun",
		"af_packet", "vmgenid"} {
		if strings.HasPrefix(module, prefix) {
			return false
		}
	}
	return true
}

// open opens what is out of reach in the sandbox's own root, and returns the names of the disks by
// device.
func (s *strict) open() (map[string]string, error) {
	names, err := s.find()
	if err != nil {
		return nil, err
	}
	if s.stop, err = stopRegister("/sys/bus/pci/devices"); err != nil {
		return nil, err
	}
	if s.modules, err = os.OpenRoot("/modules"); err != nil {
		return nil, err
	}
	for device, name := range names {
		if name == script.Disk {
			if s.script, err = os.Open("/dev/" + device); err != nil {
				return nil, err
			}
		}
	}
	return names, nil
}

// stopRegister returns the register that stops the machine. It stays mapped.
func stopRegister(devices string) ([]byte, error) {
	found, err := os.ReadDir(devices)
	if err != nil {
		return nil, err
	}
	for _, d := range found {
		dir := filepath.Join(devices, d.Name())
		vendor, _ := os.ReadFile(dir + "/vendor")
		device, _ := os.ReadFile(dir + "/device")
		if strings.TrimSpace(string(vendor)) != stopVendor ||
			strings.TrimSpace(string(device)) != stopDevice {
			continue
		}
		if err := os.WriteFile(dir+"/enable", []byte("1"), 0); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(dir+"/resource0", os.O_RDWR|unix.O_SYNC, 0)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		// the firmware gives each memory of a device a page of its own
		b, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED)
		return b, os.NewSyscallError("mmap", err)
	}
	return nil, errors.New("the machine does not have a device that stops it")
}

// find waits for the disks in memory, and names them by their addresses.
func (s *strict) find() (map[string]string, error) {
	type device struct {
		name    string
		address uint64
	}
	var found []device
	_, err := poll(deviceWait, fmt.Sprintf("%d disks in its memory", len(s.disks)), func() string {
		found = found[:0]
		paths, _ := filepath.Glob("/sys/block/" + memoryDisk + "*")
		var buf [64]byte
		for _, path := range paths {
			d := device{name: filepath.Base(path)}
			n, err := process.ReadSmall(path+"/device/resource", buf[:])
			if err == nil {
				d.address, err = strconv.ParseUint(strings.TrimSpace(string(buf[:n])), 0, 64)
			}
			if err == nil && existing("/dev/"+d.name) != "" {
				found = append(found, d)
			}
		}
		if len(found) != len(s.disks) {
			return ""
		}
		return "all"
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b device) int { return cmp.Compare(a.address, b.address) })
	names := make(map[string]string)
	for i, d := range found {
		names[d.name] = s.disks[i]
	}
	return names, nil
}

// serveScript performs the script, stops the machine until the host resumes it, and then answers
// the host, from the results first.
func (m *machine) serveScript(opt agent.Options, open func() (io.ReadWriteCloser, error),
	say func(string)) error {
	conductor, err := m.conductor()
	if err != nil {
		return err
	}
	if conductor != nil {
		opt.Script = conductor
	}
	a, err := agent.New(opt)
	if err != nil {
		return err
	}
	if conductor != nil {
		if err := conductor.Run(context.Background(), a.ServeConn); err != nil {
			return err
		}
	}
	say("ready")
	m.strict.stop[0] = stopNow
	m.strict.loadRest(say)
	port, err := open()
	if err != nil {
		return err
	}
	err = a.Serve(context.Background(), port)
	m.groups.KillAll()
	return err
}

// conductor returns the conductor of the machine's script; nil without a script.
func (m *machine) conductor() (*script.Conductor, error) {
	f := m.strict.script
	if f == nil {
		return nil, nil
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	calls, err := script.Decode(f, size)
	if err != nil {
		return nil, err
	}
	return script.New(calls, m.spool), nil
}

// spool returns a new file without a name on the disk that takes the writes.
func (m *machine) spool() (*os.File, error) {
	fd, err := unix.Openat(m.base, strings.TrimPrefix(upperDir, "/"),
		unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	return os.NewFile(uintptr(fd), "output"), nil
}

// loadRest loads the modules that were left.
func (s *strict) loadRest(say func(string)) {
	dir, err := s.modules.Open(".")
	if err != nil {
		say("modules: " + err.Error())
		return
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		say("modules: " + err.Error())
	}
	slices.Sort(names)
	for _, name := range names {
		f, err := s.modules.Open(name)
		if err == nil {
			err = unix.FinitModule(int(f.Fd()), "", 0)
			_ = f.Close()
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			say("module " + name + ": " + err.Error())
		}
	}
}
