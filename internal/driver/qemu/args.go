package qemu

import (
	"fmt"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/substrate"
)

// The descriptors that QEMU inherits. QEMU gets no paths to open: it can only use its descriptors.
const (
	fdNull    = 1        // the standard output: /dev/null
	fdQMP     = 2 + iota // control socket
	fdAgent              // the virtio-serial port's socket
	fdConsole            // the serial console's socket
	fdNet                // the network card's socket, for a shape with a network only
	fdRAM                // the guest's memory
	fdRoot               // root image, read-only
	fdScratch            // the disk that stores the writes
	fdKernel
	fdInitramfs // for a boot only
	fdHome      // for a restore only
	fdLayers    // the first layer; for a restore only
)

const (
	scratchSerial = substrate.StrictScratch
	RootSerial    = "root"
	portName      = "turnstone.agent"
	machineType   = "q35"
)

// An accel is one way to run the guest's instructions.
type accel string

const (
	accelKVM accel = "kvm"
	accelTCG accel = "tcg"
)

// unhardened disables a kernel's protection against its own users, under TCG only. Each protection
// lengthens a start there, because TCG must translate every instruction that runs for the first
// time, and TCG's own security boundary is around the machine. With norandmaps each program has the
// same addresses: TCG stores its translations by virtual address, and would otherwise translate
// every exec anew (8,500 blocks for a second bash; 70 with norandmaps).
var unhardened = []string{"mitigations=off", "hardened_usercopy=off", "randomize_kstack_offset=off",
	"init_on_alloc=0", "lsm=capability", "norandmaps"}

// kernelArgs returns the guest kernel's command line. It is part of a snapshot's identity.
func kernelArgs(a accel, shape turnstone.Shape) string {
	args := []string{
		"console=ttyS0", "quiet", "loglevel=3", "panic=-1", "reboot=t", "rdinit=/init",
		"audit=0", "nowatchdog", "no_timer_check", "tsc=reliable",
		"transparent_hugepage=never", // each touched page costs a clone private memory
		"rcupdate.rcu_expedited=1", "random.trust_cpu=on", "cgroup_no_v1=all",
		// the agent mounts it before the snapshot, which includes the disk
		"turnstone.scratch=" + scratchSerial,
	}
	if a == accelTCG {
		args = append(args, unhardened...)
	}
	if shape.Network {
		args = append(args, "turnstone.net="+network.GuestAddress+","+network.Gateway+","+
			network.DNS)
	}
	return strings.Join(args, " ")
}

// arguments returns QEMU's command line. A restore has the same devices as the boot whose state it
// loads; only the memory is copy-on-write, the kernel is a stub (see stubKernel), and there may be
// images in the slots.
func arguments(e engine, shape turnstone.Shape, restore bool, in disks) []string {
	share := "on"
	if restore {
		share = "off"
	}
	args := []string{
		"-name", "turnstone", "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", machineType +
			",memory-backend=ram,vmport=off,smm=off,usb=off,graphics=off,sata=off,smbus=off," +
			"i8042=off",
		"-accel", accelArgument(e.accel), "-cpu", e.model(),
		"-smp", fmt.Sprint(shape.CPUs), "-m", fmt.Sprintf("%dK", int64(shape.Memory)>>10),
		"-object", fmt.Sprintf("memory-backend-file,id=ram,size=%d,"+
			"mem-path=/proc/self/fd/%d,share=%s",
			int64(shape.Memory), fdRAM, share),
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", fdQMP), "-mon", "chardev=qmp,mode=control",
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", fdConsole),
		"-device", "isa-serial,chardev=console",
		"-device", "virtio-serial-pci,max_ports=2",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", fdAgent),
		"-device", "virtserialport,chardev=agent,name=" + portName,
		"-add-fd", fmt.Sprintf("fd=%d,set=1", fdRoot),
		"-add-fd", fmt.Sprintf("fd=%d,set=2", fdScratch),
		"-blockdev", "driver=file,node-name=root,filename=/dev/fdset/1,read-only=on,locking=off",
		"-device", "virtio-blk-pci,drive=root,serial=" + RootSerial,
		"-blockdev", "driver=file,node-name=scratch,filename=/dev/fdset/2,locking=off," +
			"discard=unmap,cache.no-flush=on",
		"-device", "virtio-blk-pci,drive=scratch,serial=" + scratchSerial,
	}
	if e.bios != "" {
		args = append(args, "-bios", e.bios)
	}
	args = append(args, slots(in)...)
	args = append(args, "-kernel", fmt.Sprintf("/proc/self/fd/%d", fdKernel))
	if shape.Network {
		args = append(args,
			"-netdev", fmt.Sprintf("stream,id=net,server=off,addr.type=fd,addr.str=%d", fdNet),
			"-device", "virtio-net-pci,netdev=net,romfile=")
	}
	if restore {
		return append(args, "-incoming", "defer")
	}
	return append(args, "-initrd", fmt.Sprintf("/proc/self/fd/%d", fdInitramfs),
		"-append", kernelArgs(e.accel, shape))
}

func accelArgument(a accel) string {
	if a == accelTCG {
		return "tcg,thread=multi"
	}
	return string(a)
}
