package service

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
)

// groupRoot is where hosts mount control groups, version 2.
const groupRoot = "/sys/fs/cgroup"

// joinCgroup moves the shim, and so the machine that it starts, into a control group below the
// pod's: the kubelet's bounds of the pod bound the machine. Only for version 2, and for names that
// are paths. The kubelet removes the pod's group with what is in it.
func joinCgroup(parent, id string) error {
	if parent == "" {
		return nil
	}
	if !filepath.IsAbs(parent) {
		return errors.New("its name is no path")
	}
	if !unified() {
		return errors.New("the host has no control groups of version 2")
	}
	dir := filepath.Join(groupRoot, filepath.Clean(parent), groupName(id))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

// unified reports whether the host has control groups of version 2.
func unified() bool {
	_, err := os.Stat(filepath.Join(groupRoot, "cgroup.controllers"))
	return err == nil
}

func groupName(id string) string { return "turnstone-" + id }
