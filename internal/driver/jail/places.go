//go:build linux && amd64

package jail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// A Place is a file or a folder that a jail has under a name of its own.
type Place struct {
	// At is the place's path in the jail: absolute, and not in a shown folder. It may be in a
	// folder of an earlier place; the folder's user must then be able to create a file there.
	At string
	// Host is the path on the host. In a root's jail the files belong to Nobody or are readable by
	// all, because the program has no more rights than that.
	Host string
	// Write allows the program to write as far as its user may.
	Write bool
	// Zeros is the size of a file that reads as zeros and accepts one page of writes. It has no
	// Host.
	Zeros int64
}

// trees returns the mounts that a root's jail attaches at its places, in their order. Root's
// program has no right to reach the host's paths, so the mounts are created outside (since Linux
// 5.2).
func trees(places []Place) (made []*os.File, err error) {
	for _, p := range places {
		if p.Host == "" {
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, p.Host, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			closeAll(made)
			return nil, &fs.PathError{Op: "open_tree", Path: p.Host, Err: err}
		}
		made = append(made, os.NewFile(uintptr(fd), p.Host))
	}
	return made, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// places appends the calls that put the places into the new root. Their mounts are the descriptors
// from tree on; negative: the host's paths are bound.
func (p *place) places(list []Place, tree int) error {
	for i, to := range list {
		at := filepath.Clean(to.At)
		switch {
		case !filepath.IsAbs(at) || at == "/" || within(at, "/proc") || p.made[at]:
			return fmt.Errorf("%s cannot be a place in a jail", to.At)
		case to.Host == "":
			p.zeros("/zeros"+strconv.Itoa(i), at, to.Zeros)
			continue
		}
		if err := p.put(to, at, tree); err != nil {
			return err
		}
		if tree >= 0 {
			tree++
		}
	}
	return nil
}

// put appends the calls that put the host's file or folder at a place.
func (p *place) put(to Place, at string, tree int) error {
	st, err := os.Stat(to.Host)
	switch {
	case err != nil:
		return err
	case st.IsDir():
		p.folder(at)
	case st.Mode().IsRegular():
		p.file(at)
	default:
		return fmt.Errorf("%s cannot be a place in a jail: it is a %s", to.Host, st.Mode().Type())
	}
	if tree >= 0 {
		p.attach(at, tree)
	} else {
		host, err := filepath.Abs(to.Host)
		if err != nil {
			return err
		}
		p.bind(host, at, 0)
	}
	flags, err := locked(to.Host)
	if err != nil {
		return err
	}
	if flags |= unix.MS_NOEXEC; !to.Write {
		flags |= unix.MS_RDONLY
	}
	p.restrict(at, flags)
	return nil
}

// zeros puts a file of size zero bytes at a place, in a file system of a single page.
func (p *place) zeros(dir, at string, size int64) {
	p.folder(dir)
	p.code.call("mount "+dir, unix.SYS_MOUNT, p.code.text("none"), p.code.text(mountpoint+dir),
		p.code.text("tmpfs"),
		unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, p.code.text("size=4k,nr_inodes=8,mode=700"))
	p.code.call("mknod "+dir, unix.SYS_MKNOD, p.code.text(mountpoint+dir+"/zeros"),
		unix.S_IFREG|0o600, 0)
	p.code.call("truncate "+dir, unix.SYS_TRUNCATE, p.code.text(mountpoint+dir+"/zeros"),
		uint64(size))
	p.file(at)
	p.bind(mountpoint+dir+"/zeros", at, 0)
}

// inRoot opens what root's program cannot create itself: its devices and the mounts of its places.
// devices is nil if the kernel cannot create device nodes and places do not need it.
func (j Jail) inRoot() (devices *os.File, places []*os.File, err error) {
	if len(j.Devices) > 0 {
		if devices, err = nodes(j.Devices); err != nil && len(j.Places) > 0 {
			return nil, nil, err
		}
	}
	if places, err = trees(j.Places); err != nil {
		if devices != nil {
			err = errors.Join(err, devices.Close())
		}
		return nil, nil, err
	}
	return devices, places, nil
}
