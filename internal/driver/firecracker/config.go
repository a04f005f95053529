package firecracker

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
)

// The names of a Firecracker's files, in its working folder. A snapshot contains them, so they are
// the same for each clone, and each clone has its own folder. Loading a snapshot has no other way
// to give a drive another file.
const (
	kernelName  = "kernel"
	initrdName  = "initrd"
	rootName    = "root"
	scratchName = "scratch"
	stateName   = "state"
	ramName     = "ram"
	outName     = "out" // folder in which it writes snapshots
	apiSocket   = "api"
	vsockSocket = "vsock"
)

// agentPort is the port of the vsock on which the agent listens.
const agentPort = 1024

// guestCID is the machine's address on its vsock: the first free address. Each machine has its own
// vsock, so the address may be the same for all.
const guestCID = 3

// maxCPUs is the API's maximum.
const maxCPUs = 32

// driveNames returns the names of a machine's disks in order, which is the order of the guest's
// vda, vdb and so on. Firecracker derives a disk's serial number from its file's inode, so
// turnstone.disks tells the agent the names.
func driveNames() []string {
	names := []string{rootName, scratchName}
	for i := range substrate.MaxLayers {
		names = append(names, substrate.LayerSerial(i))
	}
	return append(names, substrate.HomeSerial)
}

// kernelArgs returns the guest kernel's command line. The kernel's protection against its own users
// is fully enabled: under KVM it costs little. Firecracker adds pci=off. Modules stay allowed,
// because some drivers are modules.
func kernelArgs() string {
	return strings.Join([]string{
		"console=ttyS0", "quiet", "loglevel=3", "panic=-1", "reboot=k", "rdinit=/init",
		"i8042.noaux", "i8042.nomux", "i8042.dumbkbd", "swiotlb=noforce",
		"audit=0", "nowatchdog", "no_timer_check", "tsc=reliable",
		"transparent_hugepage=never", // each touched page costs a clone private memory
		"rcupdate.rcu_expedited=1", "random.trust_cpu=on", "cgroup_no_v1=all",
		"turnstone.scratch=" + scratchName,
		fmt.Sprintf("turnstone.vsock=%d", agentPort),
		"turnstone.disks=" + strings.Join(driveNames(), ","),
	}, " ")
}

// bootRequests returns the requests that create a machine and start it.
func (s *Substrate) bootRequests(shape turnstone.Shape) []request {
	put := func(path string, body any) request { return request{http.MethodPut, path, body} }
	requests := []request{
		put("/machine-config", machineConfiguration{VCPUCount: shape.CPUs,
			MemSizeMiB: mebibytes(shape.Memory)}),
		put("/boot-source", bootSource{KernelImagePath: kernelName, InitrdPath: initrdName,
			BootArgs: kernelArgs()}),
	}
	for _, name := range driveNames() {
		requests = append(requests, put("/drives/"+name, s.drive(name)))
	}
	return append(requests,
		put("/vsock", vsockDevice{GuestCID: guestCID, UDSPath: vsockSocket}),
		put("/entropy", entropyDevice{}),
		put("/balloon", balloon{DeflateOnOOM: true, FreePageReporting: s.release.atLeast(1, 14)}),
		put("/actions", action{instanceStart}),
	)
}

// drive describes the disk called name. No disk is the root device: a root device would add root=
// to the kernel's command line, and the agent is in the initramfs.
func (s *Substrate) drive(name string) drive {
	d := drive{DriveID: name, PathOnHost: name, IsReadOnly: true, CacheType: unsafeCache,
		IOEngine: syncEngine}
	switch name {
	case scratchName:
		d.IsReadOnly, d.RateLimiter = false, s.limits.limiter()
	case substrate.HomeSerial: // it outlives the machine, so its flushes count
		d.IsReadOnly, d.CacheType, d.RateLimiter = false, writeback, s.limits.limiter()
	}
	return d
}

// loadRequest returns the request that starts a machine from a snapshot: its memory is mapped
// copy-on-write from the file (MAP_PRIVATE), and no process serves page faults. KVM records written
// pages, for a snapshot of the running machine.
func (s *Substrate) loadRequest() request {
	renamed := s.release.atLeast(1, 13)
	return request{http.MethodPut, "/snapshot/load", snapshotLoad{SnapshotPath: stateName,
		MemBackend: memoryBackend{BackendType: fileBackend, BackendPath: ramName}, ResumeVM: true,
		TrackDirtyPages: renamed, EnableDiffSnapshots: !renamed}}
}

func createRequest(kind string) request {
	return request{http.MethodPut, "/snapshot/create", snapshotCreate{SnapshotType: kind,
		SnapshotPath: outName + "/" + stateFile, MemFilePath: outName + "/" + ramFile}}
}

func stateRequest(state string) request {
	return request{http.MethodPatch, "/vm", vmState{state}}
}

// mebibytes returns a machine's memory in the API's unit, rounded up.
func mebibytes(b turnstone.Bytes) int64 { return (int64(b) + 1<<20 - 1) >> 20 }

// checkMachine rejects the machines that the API would reject.
func checkMachine(m substrate.Machine) error {
	refuse := func(subject string, err error) error {
		return turnstone.NewError("firecracker.boot", turnstone.KindInvalid, subject, err)
	}
	switch {
	case m.Shape.CPUs < 1 || m.Shape.CPUs > maxCPUs:
		return refuse("cpus", fmt.Errorf("%d: Firecracker gives a machine 1 to %d", m.Shape.CPUs,
			maxCPUs))
	case len(m.Layers) > substrate.MaxLayers:
		return refuse("layers", fmt.Errorf("there are %d, and a machine takes %d", len(m.Layers),
			substrate.MaxLayers))
	case m.Shape.Memory < 1:
		return refuse("memory", errors.New("there is none"))
	}
	return nil
}

// limits are the rate limits of each written disk.
type limits struct {
	bytes turnstone.Bytes // per second; 0: any
	ops   int64           // per second; 0: any
}

// refill is the time in which a bucket fills, in milliseconds: its size is one second's worth.
const refill = 1000

func (l limits) limiter() *rateLimiter {
	if l == (limits{}) {
		return nil
	}
	r := new(rateLimiter)
	if l.bytes > 0 {
		r.Bandwidth = &tokenBucket{Size: int64(l.bytes), RefillTime: refill}
	}
	if l.ops > 0 {
		r.Ops = &tokenBucket{Size: l.ops, RefillTime: refill}
	}
	return r
}
