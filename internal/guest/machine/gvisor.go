package machine

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/guest/agent"
)

// gvisorScratch is the name that a gVisor sandbox gives the file system that takes its writes.
const gvisorScratch = "scratch"

// BootGVisor is Boot for a gVisor container. It must run as the container's first process, "/init
// gvisor". The host has set up the container as follows:
//
//   - runsc runs with --in-sandbox-cgroup=v2, without a mount of cgroups, and with
//     all capabilities in the container's process;
//   - / is a read-only image with this program as /init and the empty folders /proc,
//     /sys, /dev, /run, /tmp, /lower, /scratch, /merged, /stack, /skel and /layer/0 to
//     /layer/5; the kernel's own file systems are mounted there, or will be;
//   - /lower is the template's root image, /layer/0 and so on the images of the
//     layers' slots, each with the folders fs and context, or an empty image;
//   - /scratch is a tmpfs as large as the disk. Its content should not count as
//     memory: a separate file on the host has to hold it;
//   - standard input and output are two pipes to the host, which a restore replaces;
//     standard error takes the console's lines.
//
// A checkpoint may be taken as soon as ReadyLine is on standard error. Before that the agent sets
// up the sandbox's root and runs the shell once. The pipes must stay open meanwhile, or end: an end
// counts only after the host has sent data.
func BootGVisor() {
	say := func(line string) { _, _ = os.Stderr.WriteString("turnstone-agent: " + line + "\n") }
	code := 0
	if err := bootGVisor(say); err != nil {
		say("failed: " + err.Error())
		code = 1
	}
	os.Exit(code)
}

// gvisorSlots is the number of slots for layers.
const gvisorSlots = 6

// gvisorMounts are the mounts that the agent creates, except those that the host has already made.
var gvisorMounts = []kernelMount{
	{"/proc", "proc", "", noFiles},
	{"/sys", "sysfs", "", noFiles},
	{"/dev", "devtmpfs", "mode=0755", unix.MS_NOSUID},
	{"/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666", unix.MS_NOSUID | unix.MS_NOEXEC},
	{"/dev/shm", "tmpfs", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	{"/run", "tmpfs", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
	{"/sys/fs/cgroup", "cgroup2", "", noFiles},
	{skelDir, "tmpfs", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
}

func bootGVisor(say func(string)) error {
	keepSignals()
	if err := mountKernel(gvisorMounts, isMountPoint); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod("/run", 0o755),
		os.MkdirAll(skelDir+contextDir, 0o755)); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		say("loopback: " + err.Error())
	}
	m := &machine{base: -1, gvisor: true, kernel: askKernel()}
	if err := m.newSpace(); err != nil {
		return err
	}
	if err := m.newGroups(); err != nil {
		return err
	}
	m.groups.EnforceMemory()
	m.disks.Still, m.card.passing = agent.KillOthers, true
	if err := m.prepare(params{scratch: gvisorScratch}); err != nil {
		return err
	}
	return m.serve(func() (io.ReadWriteCloser, error) { return &pipes{in: 0, out: 1}, nil }, say)
}

// isMountPoint reports whether dir is on another file system than its parent.
func isMountPoint(dir string) bool {
	var st, above unix.Stat_t
	return unix.Stat(dir, &st) == nil && unix.Stat(filepath.Dir(dir), &above) == nil &&
		st.Dev != above.Dev
}

// mountedLayers returns the overlay's lower directories of the layers that the host has mounted in
// their slots, from the highest to the lowest.
func mountedLayers(layers []string) (lower, context []string, err error) {
	for i := len(layers) - 1; i >= 0; i-- {
		slot, ok := strings.CutPrefix(layers[i], "layer")
		n, numErr := strconv.Atoi(slot)
		if !ok || numErr != nil || n < 0 || n >= gvisorSlots {
			return nil, nil, errors.New("there is no slot called " + layers[i])
		}
		dir := filepath.Join(layerDir, strconv.Itoa(n))
		lower = append(lower, filepath.Join(dir, "fs"))
		context = append(context, filepath.Join(dir, "context"))
	}
	return lower, context, nil
}
