package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/mount"

	"turnstone.dev/turnstone/shim/rootfs"
)

// ImageCommand is the argument with which the shim's program makes an image of a root file system.
const ImageCommand = "make-image"

// makeImage makes an image in a process of its own, in the control group in which the shim was started and not in the
// pod's. It goes on when its caller, or the pod, has ended: the next one has the image then.
func makeImage(group string) func(ctx context.Context, o rootfs.Order) error {
	return func(ctx context.Context, o rootfs.Order) error {
		program, err := os.Executable()
		if err != nil {
			return err
		}
		order, err := json.Marshal(o)
		if err != nil {
			return err
		}
		var said bytes.Buffer
		cmd := exec.Command(program, ImageCommand)
		cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		cmd.Stdin, cmd.Stderr = bytes.NewReader(order), &said
		// its mounts are its own, and end with it
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Unshareflags: syscall.CLONE_NEWNS}
		if err := cmd.Start(); err != nil {
			return err
		}
		if group != "" {
			_ = os.WriteFile(group, []byte(strconv.Itoa(cmd.Process.Pid)), 0) // or the pod bounds it
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if text := strings.TrimSpace(said.String()); err != nil && text != "" {
				err = errors.New(text[:min(len(text), 500)])
			}
			return err
		case <-ctx.Done():
			return fmt.Errorf("it is still being made: %w", ctx.Err())
		}
	}
}

// groupFile returns the file that takes processes into the control group, of version 2, in which this process is; empty:
// there is none.
func groupFile() string {
	if !unified() {
		return ""
	}
	text, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.SplitSeq(string(text), "\n") {
		if path, ok := strings.CutPrefix(line, "0::/"); ok {
			return filepath.Join(groupRoot, path, "cgroup.procs")
		}
	}
	return ""
}

// MakeImage makes the image that in describes. It runs in a process and a mount namespace of its own.
func MakeImage(in io.Reader) error {
	var o rootfs.Order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return err
	}
	return rootfs.Make(context.Background(), o, withLayers)
}

// withLayers calls f while layers are mounted, read-only. The mount ends with the process.
func withLayers(layers []string, f func(dir string) error) error {
	if len(layers) == 1 { // an overlay has two folders at least
		return f(layers[0])
	}
	const dir = "/sys" // is there, and the mount is over it in this process's mount namespace alone
	err := mount.All([]mount.Mount{{Type: "overlay", Source: "overlay",
		Options: []string{"ro", "lowerdir=" + strings.Join(layers, ":")}}}, dir)
	if err != nil {
		return fmt.Errorf("mounting the layers: %w", err)
	}
	return f(dir)
}
