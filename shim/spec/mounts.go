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
	Sub      string // the path of the mount below Source; empty: all of it
	Mount    int    // the number of its mount in Mounts
	ReadOnly bool
	// Updated means that the kubelet replaces the content during the pod's life.
	Updated bool
	// Own means that no other container has it: it ends with the container.
	Own bool
	// Back means that the file is copied to the host when the container ends.
	Back bool
}

// Kinds of volumes whose content belongs to the pod: what is written to them is written in the
// sandbox, and needs not to be seen from outside. The names are the kubelet's and containerd's, but
// a hostPath may have any name: the pod's own UID, and the IDs of its sandbox and its container, are
// in the ones that are meant.
var (
	podVolume = regexp.MustCompile(`/pods/([^/]+)/volumes/` +
		`kubernetes\.io~(empty-dir|configmap|secret|projected|downward-api)/`)
	podFile        = regexp.MustCompile(`/pods/([^/]+)/etc-hosts$`)
	terminationLog = regexp.MustCompile(`/pods/([^/]+)/containers/[^/]+/[0-9a-f]+$`)
	subPath        = regexp.MustCompile(`/pods/([^/]+)/volume-subpaths/([^/]+)/[^/]+/[0-9]+$`)
	// what containerd itself makes for a pod
	sandboxFile = regexp.MustCompile(
		`/io\.containerd\.grpc\.v1\.cri/sandboxes/([^/]+)/(?:hostname|hosts|resolv\.conf|shm)$`)
	// what containerd makes for a VOLUME of an image, with the image's content
	imageVolume = regexp.MustCompile(
		`/io\.containerd\.grpc\.v1\.cri/containers/([^/]+)/volumes/[^/]+$`)
)

// An Owner names whose container is described.
type Owner struct {
	Container string // its ID
	Sandbox   string // the ID of the pod's sandbox
	UID       string // the pod's, as the kubelet names it
	// Below reports whether a folder of the host is mounted from below another, and its path there.
	// nil: none is.
	Below func(source, folder string) (sub string, ok bool)
}

// emptyDir returns the folder of the emptyDir whose subPath the kubelet has mounted at source, and
// the path below it. The name of a volume is unique in its pod, and that of the folder has the kind.
func (o Owner) emptyDir(source string) (folder, sub string, ok bool) {
	m := subPath.FindStringSubmatchIndex(source)
	if m == nil || o.Below == nil || o.UID == "" || source[m[2]:m[3]] != o.UID {
		return "", "", false
	}
	folder = path.Join(source[:m[3]], "volumes/kubernetes.io~empty-dir", source[m[4]:m[5]])
	sub, ok = o.Below(source, folder)
	return folder, sub, ok
}

// kind returns what the source of a mount is: a kind of podVolume, "file", "termination", or
// nothing for a path of the host.
func (o Owner) kind(source string) string {
	for _, x := range []struct {
		form *regexp.Regexp
		of   string
		kind string // empty: the second group
	}{
		{podVolume, o.UID, ""}, {podFile, o.UID, "file"}, {terminationLog, o.UID, "termination"},
		{sandboxFile, o.Sandbox, "file"}, {imageVolume, o.Container, "image"},
	} {
		switch m := x.form.FindStringSubmatch(source); {
		case m == nil || x.of == "" || m[1] != x.of:
		case x.kind != "":
			return x.kind
		default:
			return m[2]
		}
	}
	return ""
}

// flags are the options of mounts that are flags.
var flags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "rro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV,
	"noexec": unix.MS_NOEXEC, "sync": unix.MS_SYNCHRONOUS, "noatime": unix.MS_NOATIME,
	"nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
	"strictatime": unix.MS_STRICTATIME,
}

// ignored are options that mean nothing in a sandbox.
var ignored = []string{"rw", "suid", "dev", "exec", "bind", "rbind", "private", "rprivate", "slave",
	"rslave", "defaults", "async", "rrw"}

// mount adds m to the container's mounts.
func (c *Container) mount(m specs.Mount, o Owner) error {
	if err := guest.CheckPath(m.Destination); err != nil {
		return refuse("mounts", "%.100q: %v", m.Destination, err)
	}
	g := guest.Mount{Type: m.Type, Target: path.Clean(m.Destination)}
	bind := m.Type == "bind"
	for _, option := range m.Options {
		switch f, ok := flags[option]; {
		case ok:
			g.Flags |= f
		case option == "bind" || option == "rbind":
			bind = true
		case slices.Contains(ignored, option):
		case option == "shared" || option == "rshared":
			return refuse("mounts", "%.100q: propagation to the host (%s)", m.Destination, option)
		case strings.ContainsAny(option, ",\x00") || bind:
			return refuse("mounts", "%.100q: the option %.40q", m.Destination, option)
		default:
			g.Data = append(g.Data, option)
		}
	}
	if bind {
		return c.bind(m, g, o)
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
		g.Type, g.Source, g.Data = "bind", "/sys/fs/cgroup/pod-"+o.Container, nil
		g.Flags |= unix.MS_RDONLY
	default:
		return refuse("mounts", "%.100q: the file system %.40q", m.Destination, m.Type)
	}
	c.Mounts = append(c.Mounts, g)
	return nil
}

// updated are the kinds of volumes whose content the kubelet replaces.
var updated = []string{"configmap", "secret", "projected", "downward-api"}

func (c *Container) bind(m specs.Mount, g guest.Mount, o Owner) error {
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
	folder, sub, isSub := o.emptyDir(src)
	switch kind := o.kind(src); {
	case isSub:
		v.Source, v.Sub = folder, sub
	case kind == "termination":
		v.Own, v.Back = true, !v.ReadOnly
	case kind != "":
		v.Own, v.Updated = kind == "image", slices.Contains(updated, kind)
	case !v.ReadOnly && subPath.MatchString(src):
		return refuse("mounts", "%.100q: a subPath that is written, of a volume that is no emptyDir",
			m.Destination)
	case !v.ReadOnly:
		return refuse("mounts", "%.100q: a writable folder of the host (%.200q), "+
			"whose content would be copied, not shared", m.Destination, src)
	}
	c.Mounts = append(c.Mounts, g)
	c.Volumes = append(c.Volumes, v)
	return nil
}
