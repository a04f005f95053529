package qemu

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/kit"
	guest "turnstone.dev/turnstone/internal/guest/script"
	"turnstone.dev/turnstone/substrate"
)

// A deterministic machine has a clock that counts instructions (-icount), one CPU, and nothing that
// completes at a time of the host's: its disks are in its memory (NVDIMM), its commands on one of
// them, and it meets its host only after the last command. It is booted each time, because a
// snapshot would be one more thing that has to be the same.

var _ substrate.Deterministic = (*Substrate)(nil)

// Tier implements substrate.Deterministic. KVM is not used for deterministic machines.
func (s *Substrate) Tier() turnstone.Tier { return turnstone.TierStrict }

const strictOp turnstone.Op = "qemu.strict"

// strictLimit is the default of Determinism.Limit.
const strictLimit = time.Hour

// nanoseconds of an instruction, as a power of two: 2 ns.
const icountShift = 1

// lockstep makes QEMU's main thread and the thread of the CPU take turns: with a record, which nobody reads,
// each holds QEMU's lock of the record for all that it does between two of its waits (replay_mutex_lock).
// Without it the main thread, which adds the time until the next timer to the clock when the only CPU halts,
// may see the halt before the CPU's thread has counted the last instructions, some three of them, which are
// then added to the timer's time (icount_start_warp_timer reads CPUState.halted, which cpu_exec sets before
// icount_process_data). On a busy host that happened in every other run, also with both threads on one
// processor.
var lockstep = fmt.Sprintf("rr=record,rrfile=/proc/self/fd/%d", fdNull)

// strictModel is the virtual CPU: all that QEMU's translator can do, on any host, without its
// random numbers.
const strictModel = "max,-rdrand,-rdseed"

// A memoryDisk is a disk of a deterministic machine. It is mapped into the machine's memory.
type memoryDisk struct {
	name string
	fd   int
	size int64
	own  bool // the machine writes to it
}

// smallestMemoryDisk is the smallest disk in memory that Linux uses (ND_MIN_NAMESPACE_SIZE).
const smallestMemoryDisk = 16 << 20

// bootStrict starts a deterministic machine, waits until its script has ended, and resumes it, so
// that the agent answers.
func (s *Substrate) bootStrict(ctx context.Context, m substrate.Machine) (substrate.Sandbox,
	error) {
	if err := strictShape(m); err != nil {
		return nil, err
	}
	f, disks, err := s.strictFiles(ctx, m)
	if err != nil {
		f.close()
		return nil, s.wrap(err)
	}
	ram, err := kit.Dup(f.ram)
	if err != nil {
		f.close()
		return nil, s.wrap(err)
	}
	defer ram.Close()
	shape := m.Shape
	vm, err := s.start(shape, append(strictArguments(m, disks), s.more...), f)
	if err != nil {
		return nil, s.wrap(err)
	}
	if _, err = vm.mon.do(ctx, negotiate); err == nil {
		err = vm.seal(ctx)
	}
	if err == nil {
		err = vm.script(ctx, m.Determinism.Limit)
	}
	if err == nil && s.look != nil {
		err = s.look(ram, vm.scratch)
	}
	if err == nil {
		err = vm.Resume(ctx)
	}
	if err != nil {
		err = vm.Why(err)
		_ = vm.Close()
		return nil, s.wrap(s.notStarted(err))
	}
	return vm, nil
}

// strictShape rejects a machine that cannot be deterministic.
func strictShape(m substrate.Machine) error {
	refuse := func(what, why, hint string) error {
		return turnstone.Errorf(strictOp, turnstone.KindInvalid, what, "%s", why).WithHint(hint)
	}
	switch {
	case m.Shape.CPUs != 1:
		return refuse(fmt.Sprintf("%d CPUs", m.Shape.CPUs), "a deterministic machine has one",
			"use cpus: 1")
	case m.Shape.Network:
		return refuse("network", "packets arrive at times that depend on the host",
			"use network: off")
	case m.Home != "":
		return refuse("home", "a deterministic machine has no disk that outlives it",
			"leave out home:")
	}
	return nil
}

// script waits until the guest has stopped its machine at the end of its script.
func (m *machine) script(ctx context.Context, limit time.Duration) error {
	if limit <= 0 {
		limit = strictLimit
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, substrate.ErrTimeUp)
	defer cancel()
	listening, give := context.WithCancelCause(ctx)
	defer give(nil)
	go func() {
		select {
		case <-m.halted:
		case <-listening.Done():
			return
		}
		select {
		case <-time.After(stopWait):
			give(errStopped)
		case <-listening.Done():
		}
	}()
	err := m.Wait(listening, strictOp, console.Patience{Idle: limit, Work: limit, Limit: 2 * limit},
		func() (console.Load, error) { return host.Load(m.PID()) })
	if err == nil {
		select {
		case <-m.halted:
			return nil
		case <-m.Done():
			err = m.Err()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil && errors.Is(context.Cause(listening), errStopped) {
		return m.stoppedError()
	}
	if err != nil && errors.Is(context.Cause(ctx), substrate.ErrTimeUp) {
		return turnstone.NewError(strictOp, turnstone.KindExhausted, string(m.ID()),
			fmt.Errorf("the steps of the deterministic machine took longer than %s: %w", limit,
				substrate.ErrTimeUp)).
			WithHint("give the turn more time with timeout:; a deterministic machine is many times " +
				"slower than others")
	}
	return err
}

// stopWait is how long the last line of the console may be on its way after the machine has stopped.
const stopWait = 10 * time.Second

var errStopped = errors.New("the guest stopped its machine")

// stopped ends a machine that its guest has stopped again: nothing would resume it.
func (m *machine) stopped() {
	m.Blame(m.stoppedError())
	_ = m.Kill()
}

func (m *machine) stoppedError() error {
	return turnstone.NewError(strictOp, turnstone.KindDead, string(m.ID()),
		fmt.Errorf("%w, which only its agent does, after the last command", errStopped)).
		WithHint("check what the steps do as root with the machine's devices")
}

// strictArguments returns QEMU's command line for a deterministic machine.
func strictArguments(m substrate.Machine, disks []memoryDisk) []string {
	d := m.Determinism
	memory, most := int64(m.Shape.Memory), int64(m.Shape.Memory)
	for _, one := range disks {
		const part = 1 << 30 // each place is aligned
		most += (one.size+part-1)/part*part + part
	}
	own := d.Derive("turnstone qemu")
	args := []string{
		"-name", "turnstone", "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", machineType +
			",memory-backend=ram,vmport=off,smm=off,usb=off,graphics=off,sata=off,smbus=off," +
			"i8042=off,nvdimm=on",
		"-accel", "tcg,thread=single", "-cpu", strictModel, "-smp", "1",
		"-icount", fmt.Sprintf("shift=%d,sleep=off,%s", icountShift, lockstep),
		"-rtc", "base=" + d.Clock.UTC().Format("2006-01-02T15:04:05") + ",clock=vm",
		"-seed", fmt.Sprint(binary.BigEndian.Uint32(own[:])),
		"-m", fmt.Sprintf("size=%dK,slots=%d,maxmem=%dK", memory>>10, len(disks), most>>10),
		"-object", fmt.Sprintf("memory-backend-file,id=ram,size=%d,"+
			"mem-path=/proc/self/fd/%d,share=on", memory, fdRAM),
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", fdQMP), "-mon", "chardev=qmp,mode=control",
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", fdConsole),
		"-device", "isa-serial,chardev=console",
		"-device", "pvpanic-pci", "-action", "panic=pause",
		// the guest looks at it after its script
		"-device", "virtio-serial-pci,max_ports=2,ioeventfd=off",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", fdAgent),
		"-device", "virtserialport,chardev=agent,name=" + portName,
	}
	names := make([]string, len(disks))
	for i, one := range disks {
		names[i] = one.name
		backend, device := ",readonly=on", ",unarmed=on"
		if one.own {
			backend, device = "", ""
		}
		args = append(args, "-object", fmt.Sprintf("memory-backend-file,id=%s,size=%d,"+
			"mem-path=/proc/self/fd/%d,share=on%s", one.name, one.size, one.fd, backend),
			"-device", "nvdimm,memdev="+one.name+device)
	}
	return append(args, "-kernel", fmt.Sprintf("/proc/self/fd/%d", fdKernel),
		"-initrd", fmt.Sprintf("/proc/self/fd/%d", fdInitramfs),
		"-append", strictKernelArgs(d, names))
}

// strictKernelArgs returns the guest kernel's command line, which is mixed into the kernel's random
// numbers as a whole.
func strictKernelArgs(d *substrate.Determinism, disks []string) string {
	seed := d.Derive("turnstone kernel")
	args := append([]string{
		"console=ttyS0", "quiet", "loglevel=3", "panic=-1", "reboot=t", "rdinit=/init",
		"audit=0", "nowatchdog", "no_timer_check", "tsc=reliable", "transparent_hugepage=never",
		"rcupdate.rcu_expedited=1", "random.trust_cpu=off", "random.trust_bootloader=off",
		"nokaslr", "cgroup_no_v1=all", "turnstone.scratch=" + scratchSerial,
		guest.Word + strings.Join(disks, ","), "turnseed=" + hex.EncodeToString(seed[:]),
	}, unhardened...)
	return strings.Join(args, " ")
}

// strictFiles opens and makes the files of a deterministic machine. Its disks are in the order of
// their addresses.
func (s *Substrate) strictFiles(ctx context.Context, m substrate.Machine) (f files,
	disks []memoryDisk, err error) {
	room := roomFor(m)
	if f.ram, err = memory("ram"); err == nil {
		err = prepareMemory(f.ram, int64(m.Shape.Memory))
	}
	if err == nil {
		f.kernel, err = os.Open(m.Kernel)
	}
	if err == nil {
		f.initramfs, err = os.Open(m.Initramfs)
	}
	if err == nil {
		f.root, err = readable(ctx, m.Root, room)
	}
	if err == nil {
		f.scratch, err = s.strictScratch(ctx, m.Shape.Disk)
	}
	if err != nil {
		return f, nil, err
	}
	disks = []memoryDisk{{name: RootSerial, fd: fdRoot},
		{name: scratchSerial, fd: fdScratch, own: true}}
	add := func(name string, file *os.File, err error) error {
		if err != nil {
			return err
		}
		disks = append(disks, memoryDisk{name: name, fd: fdLayers + len(f.layers)})
		f.layers = append(f.layers, file)
		return nil
	}
	if len(m.Determinism.Script) > 0 {
		err := room.take(guest.Size(m.Determinism.Script))
		var file *os.File
		if err == nil {
			file, err = scriptDisk(m.Determinism.Script)
		}
		if err := add(guest.Disk, file, err); err != nil {
			return f, nil, err
		}
	}
	layers, err := disk.OpenLayers(strictOp, m.Layers)
	for i, layer := range layers {
		if err == nil {
			file, copyErr := copyLayer(ctx, layer, room)
			err = add(substrate.LayerSerial(i), file, copyErr)
		}
		_ = layer.Close()
	}
	if err != nil {
		return f, nil, err
	}
	all := append([]*os.File{f.root, f.scratch}, f.layers...)
	for i := range disks {
		st, err := all[i].Stat()
		if err != nil {
			return f, nil, err
		}
		disks[i].size = st.Size()
	}
	return f, disks, nil
}

// A room is the part of Determinism.Memory that is left for copies.
type room struct{ bound, left int64 }

// roomFor returns the room beside m's memory and disk; nil: no bound.
func roomFor(m substrate.Machine) *room {
	bound := int64(m.Determinism.Memory)
	if bound == 0 {
		return nil
	}
	return &room{bound, bound - int64(m.Shape.Memory) - int64(m.Shape.Disk)}
}

// take takes size bytes of r, or returns an error of kind Exhausted.
func (r *room) take(size int64) error {
	if r == nil {
		return nil
	}
	if r.left -= size; r.left >= 0 {
		return nil
	}
	return turnstone.Errorf(strictOp, turnstone.KindExhausted, "memory",
		"the machine, its disk, its layers and its commands need %s more than the %s that this "+
			"host gives a sandbox; a deterministic machine has its disks in memory",
		turnstone.Bytes(-r.left).Human(), turnstone.Bytes(r.bound).Human()).
		WithHint("ask for less with memory: or disk:, or raise memory in [limits] of the host's " +
			"configuration")
}

// strictScratch returns an empty file system in memory.
func (s *Substrate) strictScratch(ctx context.Context, size turnstone.Bytes) (*os.File, error) {
	blank, err := disk.Fixed(ctx, diskOp, s.home, size)
	if err != nil {
		return nil, err
	}
	src, err := os.Open(blank)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	return inMemory("scratch", func(f *os.File) error { return disk.CopySparse(ctx, f, src) })
}

// readable returns the image at path, or a copy in memory if the machine's QEMU could not map it.
func readable(ctx context.Context, path string, room *room) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		_ = f.Close()
		return nil, err
	}
	shared := unprivileged() == nil || st.Mode&0o004 != 0
	if shared && st.Size >= smallestMemoryDisk && st.Size%4096 == 0 {
		return f, nil
	}
	defer f.Close()
	if err := room.take(st.Blocks * 512); err != nil {
		return nil, err
	}
	return inMemory("root", func(to *os.File) error { return disk.CopySparse(ctx, to, f) })
}

// copyLayer returns the used part of a layer's image, which fills its slot with a hole.
func copyLayer(ctx context.Context, layer *os.File, room *room) (*os.File, error) {
	size, err := erofsSize(layer)
	if err == nil {
		err = room.take(size)
	}
	if err != nil {
		return nil, err
	}
	return inMemory("layer", func(f *os.File) error {
		if err := f.Truncate(size); err != nil {
			return err
		}
		return disk.Overlay(ctx, f, layer, size)
	})
}

// erofsSize returns the size of an EROFS image according to its superblock: the number of blocks at
// byte 36, and the bits of their size at byte 12 (fs/erofs/erofs_fs.h).
func erofsSize(f *os.File) (int64, error) {
	var super [128]byte
	if _, err := f.ReadAt(super[:], 1024); err != nil {
		return 0, err
	}
	bits, blocks := super[12], int64(binary.LittleEndian.Uint32(super[36:]))
	if binary.LittleEndian.Uint32(super[:]) != 0xe0f5e1e2 || bits < 9 || bits > 16 ||
		blocks<<bits > substrate.SlotSize {
		return 0, turnstone.Errorf(strictOp, turnstone.KindIntegrity, f.Name(),
			"is no EROFS image").WithHint("remove the image")
	}
	return blocks << bits, nil
}

// scriptDisk returns a disk with the script.
func scriptDisk(calls []substrate.Call) (*os.File, error) {
	return inMemory("script", func(f *os.File) error { return guest.Encode(f, calls) })
}

// inMemory returns a file in memory that fill has filled, of a size that a disk in memory may have.
func inMemory(name string, fill func(*os.File) error) (*os.File, error) {
	f, err := memory(name)
	if err != nil {
		return nil, err
	}
	if err = fill(f); err == nil {
		var size int64
		if size, err = f.Seek(0, io.SeekEnd); err == nil {
			const part = 2 << 20
			err = f.Truncate(max(smallestMemoryDisk, (size+part-1)/part*part))
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
