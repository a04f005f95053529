package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/driver"
)

// treeScript writes a tar archive of the scripts' programs and what they load: sandboxes, bare
// programs and native processes use the same files. Perl loads IO::File for methods of files.
const treeScript = `set -e; tar -ch $(for p in /bin/bash /bin/true /usr/bin/perl; do echo $p; ` +
	`ldd $p | grep -o '/[^ ]*' | grep -v :; done | sort -u) ` +
	`$(perl -MTime::HiRes -MIO::Handle -MIO::File -MSocket -e ` +
	`'print join " ", values %INC, @DynaLoader::dl_shared_objects') 2>/dev/null`

// makeTree puts the programs of a sandbox's template into a folder of the host.
func (b *bench) makeTree(ctx context.Context, p *product) (string, error) {
	dir := filepath.Join(b.dir, "tree")
	for _, sub := range []string{"tmp", "dev"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return "", err
		}
	}
	// perl -e reads the file, and an empty file reads the same; a device would require root.
	if err := os.WriteFile(filepath.Join(dir, "dev", "null"), nil, 0o644); err != nil {
		return "", err
	}
	archive, err := p.script(ctx, treeScript)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "tar", "-x", "-C", dir)
	cmd.Stdin = strings.NewReader(archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("tar: %w: %s", err, out)
	}
	return dir, nil
}

// native returns a bash of the tree as an ordinary process of this machine.
func native(ctx context.Context, tree, text string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/bin/bash", "-c", text)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: tree}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0,
			HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0,
			HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// runscDo returns `runsc do` of a bash of the tree. Without root's rights it does not change this
// machine's network: as root it would create interfaces and rules.
func runscDo(ctx context.Context, tree, state, text string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Getenv("TURN_RUNSC"), "--root="+state, "--rootless",
		"--platform=systrap", "--network=host", "--ignore-cgroups",
		"do", "--quiet", "--root="+tree, "--cwd=/", "/bin/bash", "-c", text)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	return cmd
}

func output(cmd *exec.Cmd) (string, error) {
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, said.String())
	}
	return out.String(), nil
}

func (b *bench) nativeColumn(tree string) *column {
	return &column{title: "native",
		what: "the template's own programs as processes of this machine, in a chroot",
		host: "127.0.0.1",
		start: func(ctx context.Context) (time.Duration, error) {
			began := time.Now()
			err := native(ctx, tree, "true").Run()
			return time.Since(began), err
		},
		script: func(ctx context.Context, text string) (string, error) {
			return output(native(ctx, tree, text))
		},
	}
}

func (b *bench) runscColumn(tree string) *column {
	return &column{title: "bare runsc",
		what: "start: `runsc restore --detach` of the checkpoint that gvisor's turns start from, " +
			"until it returns; restore: the same until the agent is configured and has run " +
			"`true`; fork: `runsc checkpoint --leave-running` and `runsc restore`; the rest: " +
			"`runsc do` of the same program on the template's programs, network: `--network=host`",
		host:    "127.0.0.1",
		start:   b.inner(driver.GVisor, "restore"),
		restore: b.inner(driver.GVisor, "floor"),
		fork:    b.inner(driver.GVisor, "fork"),
		script: func(ctx context.Context, text string) (string, error) {
			return output(runscDo(ctx, tree, filepath.Join(b.dir, "runsc"), text))
		},
	}
}

func (b *bench) qemuColumn() *column {
	return &column{title: "bare qemu",
		what: "start: the shortest program that opens the snapshot that qemu's turns start from " +
			"and speaks to the agent until `true` has run, the whole process; restore: the same, " +
			"without the program's own start and end; the rest: a script in such a machine; " +
			"network: `-netdev user`",
		host:    "10.0.2.2",
		start:   b.whole(driver.QEMU, "floor"),
		restore: b.inner(driver.QEMU, "floor"),
		script: func(ctx context.Context, text string) (string, error) {
			cmd := b.floor(ctx, driver.QEMU, "script")
			cmd.Env = append(cmd.Env, "TURNSTONE_BENCH_NETWORK=user")
			cmd.Stdin = strings.NewReader(text)
			return output(cmd)
		},
	}
}

// flush writes other programs' data to the disk, before a measurement that writes.
func (b *bench) flush() error {
	dir, err := os.Open(b.dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
}
