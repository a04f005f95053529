// Package need lists the required and optional abilities of a guest's Linux kernel. The agent
// checks the running kernel against the list, the host a kernel's file. It imports no packages
// because the agent uses it.
package need

import "strings"

// A Level is the consequence of a missing ability.
type Level string

// The levels.
const (
	Always      Level = "always"      // no machine starts
	QEMU        Level = "qemu"        // no QEMU machine starts
	Firecracker Level = "firecracker" // no Firecracker machine starts
	Optional    Level = "optional"    // machines start with restrictions
)

// A Need is an ability of a kernel.
type Need struct {
	Name    string   // short, for reports and scripts: "erofs"
	What    string   // for sentences: "EROFS" in "the kernel has no EROFS"
	Options []string // the kernel options that together provide the ability
	Since   string   // the first version of Linux with the ability, if no option provides it
	Module  string   // the module that can provide it; empty: not available as a module
	Level   Level
	Without string // the consequence of its absence, for people
}

// Lack reports that a kernel does not have n: "the kernel has no EROFS (CONFIG_EROFS_FS)".
func (n Need) Lack() string { return "the kernel has no " + n.What + " (" + n.Config() + ")" }

// Config names the options in the format of a configuration file, or the version of Linux.
func (n Need) Config() string {
	if n.Since != "" {
		return "Linux " + n.Since + " or newer"
	}
	return "CONFIG_" + strings.Join(n.Options, ", CONFIG_")
}

// Of returns the need with this name.
func Of(name string) (Need, bool) {
	for _, n := range All() {
		if n.Name == name {
			return n, true
		}
	}
	return Need{}, false
}

// All returns the whole list, required abilities first.
func All() []Need {
	const start = "nothing starts"
	return []Need{
		{Name: "initramfs", What: "initial RAM disk", Options: []string{"BLK_DEV_INITRD"},
			Level:   Always,
			Without: start + ": the agent is in it"},
		{Name: "elf", What: "ELF programs", Options: []string{"BINFMT_ELF"}, Level: Always,
			Without: start},
		{Name: "console", What: "serial console",
			Options: []string{"SERIAL_8250", "SERIAL_8250_CONSOLE"}, Level: Always,
			Without: "the agent cannot report that it is ready"},
		{Name: "futex", What: "futexes", Options: []string{"FUTEX"}, Level: Always,
			Without: "the agent does not run"},
		{Name: "epoll", What: "epoll", Options: []string{"EPOLL"}, Level: Always,
			Without: "the agent does not run"},
		{Name: "eventfd", What: "eventfd", Options: []string{"EVENTFD"}, Level: Always,
			Without: "the agent does not run"},
		{Name: "memfd", What: "memfd_create", Options: []string{"MEMFD_CREATE"}, Level: Always,
			Without: "the agent starts no process"},
		{Name: "proc", What: "proc file system", Options: []string{"PROC_FS"}, Level: Always,
			Without: start},
		{Name: "sysfs", What: "sysfs", Options: []string{"SYSFS"}, Level: Always,
			Without: "no disk is found"},
		{Name: "devtmpfs", What: "devtmpfs", Options: []string{"DEVTMPFS"}, Level: Always,
			Without: "no disk is found"},
		{Name: "devpts", What: "pseudo terminals", Options: []string{"UNIX98_PTYS"}, Level: Always,
			Without: start},
		{Name: "tmpfs", What: "tmpfs", Options: []string{"TMPFS"}, Level: Always,
			Without: start},
		{Name: "pid-namespaces", What: "PID namespaces", Options: []string{"NAMESPACES", "PID_NS"},
			Level:   Always,
			Without: "processes cannot be separated from the agent"},
		{Name: "cgroup2", What: "control groups", Options: []string{"CGROUPS"}, Level: Always,
			Without: "steps have no limits and cannot be ended"},
		{Name: "cgroup-memory", What: "memory controller of control groups",
			Options: []string{"MEMCG"}, Level: Always,
			Without: "steps have no limit of memory"},
		{Name: "cgroup-pids", What: "pids controller of control groups",
			Options: []string{"CGROUP_PIDS"}, Level: Always,
			Without: "steps have no limit of processes"},
		{Name: "cgroup-cpu", What: "cpu controller of control groups",
			Options: []string{"CGROUP_SCHED"}, Level: Always,
			Without: "the CPU time of steps is not counted"},
		{Name: "cgroup-kill", What: "cgroup.kill", Since: "5.14", Level: Always,
			Without: "steps cannot be ended"},
		{Name: "erofs", What: "EROFS", Options: []string{"EROFS_FS"}, Module: "erofs",
			Level:   Always,
			Without: "the template cannot be mounted"},
		{Name: "ext4", What: "ext4", Options: []string{"EXT4_FS"}, Module: "ext4", Level: Always,
			Without: "the disk for writes cannot be mounted"},
		{Name: "overlay", What: "overlay file system", Options: []string{"OVERLAY_FS"},
			Module: "overlay", Level: Always,
			Without: "the template is not writable"},
		{Name: "virtio-blk", What: "driver for virtio disks", Options: []string{"VIRTIO_BLK"},
			Module: "virtio_blk", Level: Always,
			Without: "no disk is found"},
		{Name: "virtio-pci", What: "driver for virtio over PCI", Options: []string{"VIRTIO_PCI"},
			Module: "virtio_pci", Level: QEMU,
			Without: "QEMU's devices are not found"},
		{Name: "virtio-console", What: "driver for virtio serial ports",
			Options: []string{"VIRTIO_CONSOLE"}, Module: "virtio_console", Level: QEMU,
			Without: "the agent has no channel to the host"},
		{Name: "acpi", What: "ACPI", Options: []string{"ACPI"}, Level: Firecracker,
			Without: "Firecracker's devices are not found"},
		{Name: "virtio-mmio", What: "driver for virtio over MMIO", Options: []string{"VIRTIO_MMIO"},
			Module: "virtio_mmio", Level: Firecracker,
			Without: "Firecracker's devices are not found"},
		{Name: "virtio-vsock", What: "driver for virtio sockets",
			Options: []string{"VSOCKETS", "VIRTIO_VSOCKETS"}, Module: "vmw_vsock_virtio_transport",
			Level:   Firecracker,
			Without: "the agent has no channel to the host"},

		{Name: "inet", What: "TCP/IP", Options: []string{"NET", "INET"}, Level: Optional,
			Without: "no network and no loopback: machines run only with network: off"},
		{Name: "virtio-net", What: "driver for virtio network cards",
			Options: []string{"VIRTIO_NET"}, Module: "virtio_net", Level: Optional,
			Without: "no network on QEMU"},
		{Name: "tun", What: "TAP devices", Options: []string{"TUN"}, Module: "tun", Level: Optional,
			Without: "no network on Firecracker"},
		{Name: "unix", What: "Unix sockets", Options: []string{"UNIX"}, Level: Optional,
			Without: "programs that use them fail"},
		{Name: "smp", What: "support of several CPUs", Options: []string{"SMP"}, Level: Optional,
			Without: "a single CPU, whatever a document or --cpus requests; nproc prints 1"},
		{Name: "inotify", What: "inotify", Options: []string{"INOTIFY_USER"}, Level: Optional,
			Without: "changes of files are not reported as they happen"},
		{Name: "seccomp", What: "seccomp", Options: []string{"SECCOMP", "SECCOMP_FILTER"},
			Level:   Optional,
			Without: "programs that confine themselves fail"},
		{Name: "user-namespaces", What: "user namespaces", Options: []string{"USER_NS"},
			Level:   Optional,
			Without: "programs that create sandboxes fail"},
		{Name: "xattrs", What: "extended attributes in all file systems",
			Options: []string{"EROFS_FS_XATTR", "EXT4_FS_SECURITY", "TMPFS_XATTR"}, Level: Optional,
			Without: "capabilities and attributes of files are lost"},
		{Name: "packet", What: "packet sockets", Options: []string{"PACKET"}, Module: "af_packet",
			Level:   Optional,
			Without: "programs that read raw frames fail"},
		{Name: "dummy", What: "dummy network cards", Options: []string{"DUMMY"}, Module: "dummy",
			Level:   Optional,
			Without: "ip link add type dummy fails"},
		{Name: "virtio-rng", What: "driver for the virtio entropy device",
			Options: []string{"HW_RANDOM_VIRTIO"}, Module: "virtio_rng", Level: Optional,
			Without: "entropy comes only from the agent's reseed"},
		{Name: "virtio-balloon", What: "driver for the virtio balloon",
			Options: []string{"VIRTIO_BALLOON"}, Module: "virtio_balloon", Level: Optional,
			Without: "memory that the guest frees stays with the guest"},
		{Name: "vmgenid", What: "driver for the VM generation ID", Options: []string{"VMGENID"},
			Module: "vmgenid", Level: Optional,
			Without: "a clone's generator is reseeded only by the agent"},
		{Name: "modules", What: "loadable modules", Options: []string{"MODULES"}, Level: Optional,
			Without: "drivers must be built in"},
	}
}
