package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/mount"

	"turnstone.dev/turnstone/shim/rootfs"
)

// rootOf returns the root file system of a request, which is mounted at dir while it is read, or is there if the request
// mounts nothing.
func rootOf(r *taskAPI.CreateTaskRequest, dir string) rootfs.Root {
	var mounts []mount.Mount
	for _, m := range r.GetRootfs() {
		mounts = append(mounts, mount.Mount{Type: m.Type, Source: m.Source, Target: m.Target,
			Options: m.Options})
	}
	if len(mounts) == 0 {
		return rootfs.Root{With: func(f func(string) error) error { return f(dir) }}
	}
	return rootfs.Root{Layers: func() []string { return layersOf(mounts) }, With: func(f func(string) error) error { return withMounts(mounts, dir, f) }}
}

// layersOf returns the folders of an overlay to which nothing was written yet, the highest first: snapshots that
// containerd has committed, and never changes. It returns nothing for all other mounts.
func layersOf(mounts []mount.Mount) (layers []string) {
	if len(mounts) != 1 || mounts[0].Type != "overlay" || mounts[0].Target != "" {
		return nil
	}
	for _, o := range mounts[0].Options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "lowerdir":
			layers = strings.Split(value, ":")
		case "upperdir":
			if all, err := os.ReadDir(value); err != nil || len(all) > 0 {
				return nil
			}
		case "workdir", "index", "userxattr", "volatile", "ro", "rw", "nouserxattr":
		default: // it may say more of what is in the file system
			return nil
		}
	}
	for _, l := range layers {
		if !filepath.IsAbs(l) {
			return nil
		}
	}
	return layers
}

// withMounts calls f while the mounts are at dir.
func withMounts(mounts []mount.Mount, dir string, f func(string) error) (err error) {
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	defer func() {
		err = errors.Join(err, mount.UnmountRecursive(dir, 0))
	}()
	if err := mount.All(mounts, dir); err != nil {
		return fmt.Errorf("mounting the root file system: %w", err)
	}
	return f(dir)
}
