package gvisor

import (
	"encoding/json"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
)

// The agent's paths in its container; see package agent.
const (
	lowerPath   = "/lower"
	scratchPath = "/scratch"
)

// cpuPeriod is the period of a CPU quota, in microseconds. Only the ratio matters.
const cpuPeriod = 100_000

// capabilities are those of a sandbox's processes: all that gVisor knows, because the kernel is the
// sandbox's own.
var capabilities = []string{
	"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND", "CAP_CHOWN",
	"CAP_DAC_OVERRIDE",
	"CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_KILL",
	"CAP_LEASE",
	"CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_MKNOD", "CAP_NET_ADMIN",
	"CAP_NET_BIND_SERVICE",
	"CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID",
	"CAP_SYS_ADMIN",
	"CAP_SYS_BOOT", "CAP_SYS_CHROOT", "CAP_SYS_MODULE", "CAP_SYS_NICE", "CAP_SYS_PACCT",
	"CAP_SYS_PTRACE",
	"CAP_SYS_RAWIO", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_SYSLOG",
	"CAP_WAKE_ALARM",
}

// hostProcesses returns the limit of a sandbox's processes and threads on the host. The kernel in
// user space has some dozens; each process inside has one, and at most one more for each CPU; the
// agent limits processes inside to 1024.
func hostProcesses(shape turnstone.Shape) int64 { return 512 + 1024*int64(shape.CPUs+2) }

// spec returns the OCI configuration of a sandbox. Between a checkpoint and a restore only the
// paths of images and of dir, the sandbox's folder, may differ.
func spec(dir string, in imagePaths, shape turnstone.Shape) ([]byte, error) {
	memory, quota, period := int64(shape.Memory), int64(shape.CPUs)*cpuPeriod, uint64(cpuPeriod)
	processes := hostProcesses(shape)
	image := func(destination, source string) specs.Mount {
		return specs.Mount{Destination: destination, Type: "erofs", Source: source,
			Options: []string{"ro"}}
	}
	size := fmt.Sprintf("size=%d", int64(shape.Disk))
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs"},
		{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
		{Destination: "/run", Type: "tmpfs", Source: "tmpfs"},
		// The annotations below turn this mount into a tmpfs whose content is in a file of dir.
		{Destination: scratchPath, Type: "bind", Source: dir, Options: []string{size, "mode=755"}},
		image(lowerPath, in.lower),
	}
	for i := range substrate.MaxLayers {
		source := in.empty
		if i < len(in.layers) {
			source = in.layers[i]
		}
		mounts = append(mounts, image(slotPath(i), source))
	}
	return json.Marshal(specs.Spec{
		Version:  "1.2.0",
		Hostname: "sandbox",
		Root:     &specs.Root{Path: dir, Readonly: true},
		Process: &specs.Process{
			Args: []string{initPath, "gvisor"}, Cwd: "/", Env: []string{"PATH=/"},
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities,
				Permitted: capabilities},
		},
		Mounts: mounts,
		Annotations: map[string]string{
			"dev.gvisor.spec.rootfs.source":         in.root,
			"dev.gvisor.spec.rootfs.type":           "erofs",
			"dev.gvisor.spec.mount.scratch.source":  dir,
			"dev.gvisor.spec.mount.scratch.type":    "tmpfs",
			"dev.gvisor.spec.mount.scratch.share":   "container",
			"dev.gvisor.spec.mount.scratch.options": size + ",mode=755",
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace}},
			Resources: &specs.LinuxResources{
				Memory: &specs.LinuxMemory{Limit: &memory},
				CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
				Pids:   &specs.LinuxPids{Limit: &processes},
			},
		},
	})
}

// flags returns the flags of every runsc of a sandbox, in the sandbox's folder. The sandbox does
// not reach the host's network, and of its file system only the open images; the sandbox's process
// has no rights: it is nobody in a user namespace and in an empty root. allow-suid concerns users
// inside the sandbox.
func flags(rootless bool) []string {
	f := []string{
		"--root=/proc/self/cwd/state", // relative, because a socket's path has at most 108 bytes
		"--platform=systrap", "--network=none", "--directfs=false", "--overlay2=none",
		"--ignore-cgroups",
		"--host-settings=ignore", "--host-uds=none", "--file-access=exclusive",
		"--in-sandbox-cgroup=v2",
		"--net-raw", "--allow-packet-socket-write", "--allow-suid", "--watchdog-action=log",
	}
	if rootless {
		f = append(f, "--rootless")
	}
	return f
}
