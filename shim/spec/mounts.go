package spec

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/shim/guest"
)

// A Volume is a file or folder of the host that is copied into the sandbox.
type Volume struct {
	Source   string // on the host
	Mount    int    // the number of its mount in Mounts
	ReadOnly bool
	// Updated means that the kubelet replaces the content during the pod's life.
	Updated bool
	// Back means that the file is copied to the host when the container ends.
	Back bool
}

// Kinds of volumes whose content belongs to the pod: what is written to them is written in the
// sandbox, and needs not to be seen from outside.
var (
	podVolume = regexp.MustCompile(`/pods/[^/]+/(?:volumes|volume-subpaths)/` +
		`(?:kubernetes\.io~)?(empty-dir|configmap|secret|projected|downward-api)/`)
	podFile        = regexp.MustCompile(`/pods/[^/]+/etc-hosts$`)
	terminationLog = regexp.MustCompile(`/pods/[^/]+/containers/[^/]+/[^/]+$`)
	// what containerd itself makes for a pod
	sandboxFile = regexp.MustCompile(
		`/io\.containerd\.grpc\.v1\.cri/sandboxes/[0-9a-f]{64}/(?:hostname|hosts|resolv\.conf|shm)$`)
)

// flags are the options of mounts that are flags.
var flags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV,
	"noexec": unix.MS_NOEXEC, "sync": unix.MS_SYNCHRONOUS, "noatime": unix.MS_NOATIME,
	"nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
	"strictatime": unix.MS_STRICTATIME,
}

// ignored are options that mean nothing in a sandbox.
var ignored = []string{"rw", "suid", "dev", "exec", "bind", "rbind", "private", "rprivate", "slave",
	"rslave", "defaults", "async", "rro", "rrw"}

// mount adds m to the container's mounts.
func (c *Container) mount(m specs.Mount, id string) error {
	if err := guest.CheckPath(m.Destination); err != nil {
		return refuse("mounts", "%.100q: %v", m.Destination, err)
	}
	g := guest.Mount{Type: m.Type, Target: path.Clean(m.Destination)}
	bind := m.Type == "bind"
	for _, o := range m.Options {
		switch f, ok := flags[o]; {
		case ok:
			g.Flags |= f
		case o == "bind" || o == "rbind":
			bind = true
		case slices.Contains(ignored, o):
		case o == "shared" || o == "rshared":
			return refuse("mounts", "%.100q: propagation to the host (%s)", m.Destination, o)
		case strings.ContainsAny(o, ",\x00") || bind:
			return refuse("mounts", "%.100q: the option %.40q", m.Destination, o)
		default:
			g.Data = append(g.Data, o)
		}
	}
	if bind {
		return c.bind(m, g)
	}
	if m.Type == "tmpfs" && g.Target == "/dev/shm" { // the containers of a pod share it
		g.Type, g.Source, g.Data = "bind", guest.Shm, nil
		c.Mounts = append(c.Mounts, g)
		return nil
	}
	switch m.Type {
	case "proc", "sysfs", "tmpfs", "mqueue", "devpts":
		g.Source = m.Type
	case "cgroup", "cgroup2": // it sees its own group
		g.Type, g.Source, g.Data = "bind", "/sys/fs/cgroup/pod-"+id, nil
		g.Flags |= unix.MS_RDONLY
	default:
		return refuse("mounts", "%.100q: the file system %.40q", m.Destination, m.Type)
	}
	c.Mounts = append(c.Mounts, g)
	return nil
}

func (c *Container) bind(m specs.Mount, g guest.Mount) error {
	if err := guest.CheckPath(m.Source); err != nil {
		return refuse("mounts", "%.100q: its source: %v", m.Destination, err)
	}
	src := filepath.Clean(m.Source)
	g.Type, g.Data = "bind", nil
	if g.Target == "/dev/shm" {
		if src == "/dev/shm" {
			return refuse("mounts", "the host's /dev/shm")
		}
		g.Source = guest.Shm
		c.Mounts = append(c.Mounts, g)
		return nil
	}
	v := Volume{Source: src, Mount: len(c.Mounts), ReadOnly: g.Flags&unix.MS_RDONLY != 0}
	kind := podVolume.FindStringSubmatch(src)
	switch {
	case kind != nil:
		v.Updated = kind[1] != "empty-dir"
	case podFile.MatchString(src), sandboxFile.MatchString(src):
	case terminationLog.MatchString(src):
		v.Back = !v.ReadOnly
	case !v.ReadOnly:
		return refuse("mounts", "%.100q: a writable folder of the host (%.200q), "+
			"whose content would be copied, not shared", m.Destination, src)
	}
	c.Mounts = append(c.Mounts, g)
	c.Volumes = append(c.Volumes, v)
	return nil
}
