package main

// An edit replaces a piece of one of gVisor's files. The piece has to be there exactly
// once: after an update of gVisor that touches it, somebody has to look at it again.
type edit struct {
	name     string // what the build names when the piece is not found
	file     string // in gVisor's module
	old, new string
}

// edits are all that is changed in gVisor's files. What can be in a file of its own is
// in _gvisor.
var edits = []edit{
	// Extended attributes. gVisor refuses an inode that has some. Data behind an inode
	// begins behind its attributes.
	{"erofs: attributes of compact inodes", "pkg/erofs/erofs.go", `		ino, err := i.inodeCompactAt(off)
		if err != nil {
			return Inode{}, err
		}

		if ino.XattrCount != 0 {
			log.Warningf("Unsupported xattr at inode (nid=%v)", nid)
			return Inode{}, linuxerr.ENOTSUP
		}

		rawBlockAddr = ino.RawBlockAddr
		inodeSize = ino.SizeBytes()
`, `		ino, err := i.inodeCompactAt(off)
		if err != nil {
			return Inode{}, err
		}

		rawBlockAddr = ino.RawBlockAddr
		inodeSize = ino.SizeBytes() + int(xattrAreaSize(ino.XattrCount))
`},
	{"erofs: attributes of extended inodes", "pkg/erofs/erofs.go", `		ino, err := i.inodeExtendedAt(off)
		if err != nil {
			return Inode{}, err
		}

		if ino.XattrCount != 0 {
			log.Warningf("Unsupported xattr at inode (nid=%v)", nid)
			return Inode{}, linuxerr.ENOTSUP
		}

		rawBlockAddr = ino.RawBlockAddr
		inodeSize = ino.SizeBytes()
`, `		ino, err := i.inodeExtendedAt(off)
		if err != nil {
			return Inode{}, err
		}

		rawBlockAddr = ino.RawBlockAddr
		inodeSize = ino.SizeBytes() + int(xattrAreaSize(ino.XattrCount))
`},
	{"erofs: list attributes by descriptor", "pkg/sentry/fsimpl/erofs/erofs.go", `func (fd *fileDescription) ListXattr(ctx context.Context, size uint64) ([]string, error) {
	return nil, linuxerr.ENOTSUP
}`, `func (fd *fileDescription) ListXattr(ctx context.Context, size uint64) ([]string, error) {
	return fd.inode().listXattr(ctx, size)
}`},
	{"erofs: get an attribute by descriptor", "pkg/sentry/fsimpl/erofs/erofs.go", `func (fd *fileDescription) GetXattr(ctx context.Context, opts vfs.GetXattrOptions) (string, error) {
	return "", linuxerr.ENOTSUP
}`, `func (fd *fileDescription) GetXattr(ctx context.Context, opts vfs.GetXattrOptions) (string, error) {
	return fd.inode().getXattr(auth.CredentialsFromContext(ctx), &opts)
}`},
	{"erofs: list attributes by path", "pkg/sentry/fsimpl/erofs/filesystem.go", `	d, err := resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	d.DecRef(ctx)
	return nil, linuxerr.ENOTSUP
}`, `	d, err := resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	defer d.DecRef(ctx)
	return d.inode.listXattr(ctx, size)
}`},
	{"erofs: get an attribute by path", "pkg/sentry/fsimpl/erofs/filesystem.go", `	d.DecRef(ctx)
	return "", linuxerr.ENOTSUP
}`, `	defer d.DecRef(ctx)
	return d.inode.getXattr(rp.Credentials(), &opts)
}`},

	// Device numbers. Without them every character device looks like a whiteout.
	{"erofs: device numbers", "pkg/sentry/fsimpl/erofs/erofs.go", `	stat.DevMinor = i.fs.devMinor
}`, `	stat.DevMinor = i.fs.devMinor
	stat.RdevMajor, stat.RdevMinor = i.Rdev()
}`},

	// Files whose data stands behind their inodes cannot be mapped to memory from there.
	// The small ones of our images are such: a program, or a library's table.
	{"erofs: a copy for maps, the field", "pkg/sentry/fsimpl/erofs/erofs.go", `	// locks supports POSIX and BSD style locks.
	locks vfs.FileLocks
`, `	// copied is what maps of a file without aligned data are of; see translateCopy.
	// +checklocks:mapsMu
	copied *pageCopy ` + "`state:\"nosave\"`" + `

	// locks supports POSIX and BSD style locks.
	locks vfs.FileLocks
`},
	{"erofs: a copy for maps, made", "pkg/sentry/fsimpl/erofs/regular_file.go", `	offset, err := i.DataOffset()
	if err != nil {
		return nil, &memmap.BusError{err}
	}
`, `	if i.DataLayout() == erofs.InodeDataLayoutFlatInline {
		return i.translateCopy(ctx, optional)
	}
	offset, err := i.DataOffset()
	if err != nil {
		return nil, &memmap.BusError{err}
	}
`},
	{"erofs: a copy for maps, dropped", "pkg/sentry/fsimpl/erofs/regular_file.go", `	i.mappings.RemoveMapping(ms, ar, offset, writable)
`, `	i.mappings.RemoveMapping(ms, ar, offset, writable)
	if i.mappings.IsEmpty() {
		i.dropCopyLocked()
	}
`},

	// Slots: another image after a restore than at the checkpoint.
	{"erofs: slots, the field", "pkg/sentry/fsimpl/erofs/erofs.go", `	// released is nonzero once filesystem.Release has been called.
	released atomicbitops.Uint32
`, `	// released is nonzero once filesystem.Release has been called.
	released atomicbitops.Uint32

	// replaced says that image is another one than when the sandbox was saved; see
	// CompleteRestore.
	replaced bool ` + "`state:\"nosave\"`" + `
`},
	{"erofs: slots, their image", "pkg/sentry/fsimpl/erofs/save_restore.go", `	newImage, err := erofs.OpenImage(os.NewFile(uintptr(fd), "EROFS image file"))
`, `	if fs.isSlot() {
		image := openSlot(fd)
		fs.replaced = image.SuperBlock() != fs.image.SuperBlock()
		*fs.image = *image
		return
	}
	newImage, err := erofs.OpenImage(os.NewFile(uintptr(fd), "EROFS image file"))
`},

	// A file store for a tmpfs comes from the gofer's view of the file system. There is
	// no gofer when all mounts are EROFS images.
	{"runsc: file stores without a gofer, the path", "runsc/container/container.go", `	goferRootfs := fmt.Sprintf("/proc/%d/root", c.GoferPid.Load())
`, `	goferRootfs := fmt.Sprintf("/proc/%d/root", c.GoferPid.Load())
	if c.GoferPid.Load() == 0 {
		goferRootfs = "/proc/self/root"
	}
`},
	{"runsc: file stores without a gofer, made", "runsc/container/container.go", `		cu.Release()
		return ioFiles, nil, nil, nil, nil
	}
`, `		filestores, err := c.createGoferFilestores(conf.GetOverlay2(), mountHints)
		if err != nil {
			return nil, nil, nil, nil, fmt.Errorf("creating file stores: %w", err)
		}
		cu.Release()
		return ioFiles, filestores, nil, nil, nil
	}
`},

	// What a sandbox without a cgroup knows of its limits.
	{"runsc: limits of a sandbox without a cgroup", "runsc/sandbox/sandbox.go", `		if memLimit < mem {
			mem = memLimit
		}
	}
	cmd.Args = append(cmd.Args, "--total-memory", strconv.FormatUint(mem, 10))
`, `		if memLimit < mem {
			mem = memLimit
		}
	} else {
		mem = tellResources(cmd, args.Spec, mem)
	}
	cmd.Args = append(cmd.Args, "--total-memory", strconv.FormatUint(mem, 10))
`},

	// What root in a sandbox could do to the host's table of processes.
	{"runsc: a limit of the host's processes", "runsc/cmd/sentry/sentrycmd/boot.go", `		timer.Reached("FD limit applied")
	}
`, `		timer.Reached("FD limit applied")
	}
	if err := limitProcesses(spec); err != nil {
		util.Fatalf("Failed to limit processes: %v", err)
	}
`},

	// An ordinary user who is root in a user namespace of his own may restore. gVisor
	// refuses it because the command, unlike run, does not make that namespace itself.
	{"runsc: restore by an ordinary user", "runsc/cmd/restore.go", `	if conf.Rootless {
		return util.Errorf("Rootless mode not supported with %q", r.Name())
	}
`, `	if conf.Rootless && os.Geteuid() != 0 {
		return util.Errorf("Rootless mode not supported with %q outside of a user namespace", r.Name())
	}
`},

	// CPUs and threads. The sandbox sees as many CPUs as it was given, and as many threads
	// run the code of one of its processes. gVisor's own kernel has two threads at least.
	{"threads: of the kernel", "runsc/boot/loader.go", `	gomaxprocs.SetBase(args.NumCPU)
`, `	gomaxprocs.SetBase(kernelThreads(args.NumCPU))
`},
	{"threads: of a process in the sandbox", "pkg/sentry/platform/systrap/systrap.go", `		maxSysmsgThreads = runtime.GOMAXPROCS(0)
`, `		maxSysmsgThreads = runtime.GOMAXPROCS(0)
		if opts.ApplicationCores > 0 {
			maxSysmsgThreads = opts.ApplicationCores
		}
`},

	// One program instead of three: the sandbox's process neither executes itself again
	// to lose its rights, nor executes a helper to unmount /proc.
	{"runsc: rights are given away without another execution", "runsc/cmd/sentry/sentrycmd/boot.go", `		if !conf.Rootless {
			// /proc is umounted from a forked process, because the
`, `		if !b.applyCaps {
			b.renounce(timer)
		} else if !conf.Rootless {
			// /proc is umounted from a forked process, because the
`},

	// The seccomp filter is compiled by the build, as gVisor's own build does. One rule has
	// the number of the process that compiles it where it should have that of the sandbox's.
	{"seccomp: the compiled filter", "runsc/boot/filter/filter_precompiled.go", `	programs := make(map[string]precompiledseccomp.Program)
`, `	programs := make(map[string]precompiledseccomp.Program)
	registerTurnstone(programs)
`},
	{"seccomp: the process's number is known later", "pkg/sentry/platform/systrap/filters.go", `			seccomp.EqualTo(os.Getpid()),
`, `			seccomp.EqualTo(vars.GetUint64("self_pid")),
`},
	{"seccomp: the process's number is known later, import", "pkg/sentry/platform/systrap/filters.go", `import (
	"os"

`, `import (
`},

	// What a start does that a sandbox has no use for.
	{"start: garbage is collected later", "runsc/cmd/sentry/sentrycmd/boot.go", `	timer.Reached("boot subcommand dispatched")
`, `	timer.Reached("boot subcommand dispatched")
	collectLater()
`},
	// The points of a trace, one of each system call, take 7 ms to register.
	{"start: no trace points without a trace", "runsc/boot/loader.go", `	seccheck.Initialize()
	args.StartupTimer.Reached("seccheck initialized")
`, `	if args.PodInitConfigFD >= 0 {
		seccheck.Initialize()
	}
	args.StartupTimer.Reached("seccheck initialized")
`},
	// 128 readers are for storage across a network. Each is a thread, and so many more are
	// added to GOMAXPROCS while they are there.
	{"start: few readers of a checkpoint's pages", "pkg/sentry/state/stateio/pagesfile.go", `	pagesFileFDDefaultMaxParallel = 128
`, `	pagesFileFDDefaultMaxParallel = 4
`},
	// Each of these counters is an object of its own in a checkpoint. The host's network
	// sees no packet of the sandbox's stack.
	{"start: fewer counters of fragments, IPv4", "pkg/tcpip/network/ipv4/ipv4.go", `	buckets = 2048
`, `	buckets = 64
`},
	{"start: fewer counters of fragments, IPv6", "pkg/tcpip/network/ipv6/ipv6.go", `	buckets = 2048
`, `	buckets = 64
`},
}
