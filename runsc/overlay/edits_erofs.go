package main

// erofsEdits are the changes to gVisor's EROFS file system.
var erofsEdits = []edit{
	// Extended attributes: gVisor rejects an inode with attributes. The data that follows an inode
	// begins after its attributes.
	attributes("compact", "Compact"),
	attributes("extended", "Extended"),
	{"erofs: list attributes by descriptor", "pkg/sentry/fsimpl/erofs/erofs.go",
		`func (fd *fileDescription) ListXattr(ctx context.Context, size uint64) ([]string, error) {
	return nil, linuxerr.ENOTSUP
}`, `func (fd *fileDescription) ListXattr(ctx context.Context, size uint64) ([]string, error) {
	return fd.inode().listXattr(ctx, size)
}`},
	{"erofs: get an attribute by descriptor", "pkg/sentry/fsimpl/erofs/erofs.go",
		`func (fd *fileDescription) GetXattr(ctx context.Context, opts vfs.GetXattrOptions) (string, error) {
	return "", linuxerr.ENOTSUP
}`, `func (fd *fileDescription) GetXattr(ctx context.Context, opts vfs.GetXattrOptions) (string, error) {
	return fd.inode().getXattr(auth.CredentialsFromContext(ctx), &opts)
}`},
	{"erofs: list attributes by path", "pkg/sentry/fsimpl/erofs/filesystem.go",
		`	d, err := resolve(ctx, rp)
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
	{"erofs: access control lists by path", "pkg/sentry/fsimpl/erofs/filesystem.go",
		`	d.DecRef(ctx)
	// erofs does not support POSIX ACLs.
	return nil, nil
}`, `	defer d.DecRef(ctx)
	return d.inode.posixACL(auth.CredentialsFromContext(ctx), t)
}`},
	{"erofs: access control lists in permissions", "pkg/sentry/fsimpl/erofs/erofs.go",
		`func (i *inode) checkPermissions(creds *auth.Credentials, ats vfs.AccessTypes) error {
	return vfs.GenericCheckPermissions(creds, ats, linux.FileMode(i.Mode()), nil, auth.KUID(i.UID()), auth.KGID(i.GID()))
}

`, ``},

	// Device numbers: without them every character device looks like a whiteout.
	{"erofs: device numbers", "pkg/sentry/fsimpl/erofs/erofs.go", `	stat.DevMinor = i.fs.devMinor
}`, `	stat.DevMinor = i.fs.devMinor
	stat.RdevMajor, stat.RdevMinor = i.Rdev()
}`},

	// Inline files: gVisor cannot map a file whose data follows its inode. Small files of the
	// project's images have this layout, such as a program or a library's table.
	{"erofs: a copy for maps, the field", "pkg/sentry/fsimpl/erofs/erofs.go",
		`	// locks supports POSIX and BSD style locks.
	locks vfs.FileLocks
`, `	// copied is what maps of a file without aligned data are of; see translateCopy.
	// +checklocks:mapsMu
	copied *pageCopy ` + "`state:\"nosave\"`" + `

	// locks supports POSIX and BSD style locks.
	locks vfs.FileLocks
`},
	{"erofs: a copy for maps, made", "pkg/sentry/fsimpl/erofs/regular_file.go",
		`	offset, err := i.DataOffset()
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
	insert("erofs: a copy for maps, dropped", "pkg/sentry/fsimpl/erofs/regular_file.go",
		`	i.mappings.RemoveMapping(ms, ar, offset, writable)
`, `	if i.mappings.IsEmpty() {
		i.dropCopyLocked()
	}
`),

	// Slots: a restore opens another image than the checkpoint had.
	insert("erofs: slots, the field", "pkg/sentry/fsimpl/erofs/erofs.go",
		`	// released is nonzero once filesystem.Release has been called.
	released atomicbitops.Uint32
`, `
	// replaced says that image is another one than when the sandbox was saved; see
	// CompleteRestore.
	replaced bool `+"`state:\"nosave\"`"+`
`),
	{"erofs: slots, their image", "pkg/sentry/fsimpl/erofs/save_restore.go",
		`	newImage, err := erofs.OpenImage(os.NewFile(uintptr(fd), "EROFS image file"))
`, `	if fs.isSlot() {
		image := openSlot(fd)
		fs.replaced = image.SuperBlock() != fs.image.SuperBlock()
		*fs.image = *image
		return
	}
	newImage, err := erofs.OpenImage(os.NewFile(uintptr(fd), "EROFS image file"))
`},
}

// attributes returns an edit that accepts the attributes of inodes with a layout.
func attributes(layout, method string) edit {
	read := `		ino, err := i.inode` + method + `At(off)
		if err != nil {
			return Inode{}, err
		}

`
	start := `		rawBlockAddr = ino.RawBlockAddr
		inodeSize = ino.SizeBytes()`
	return edit{"erofs: attributes of " + layout + " inodes", "pkg/erofs/erofs.go",
		read + `		if ino.XattrCount != 0 {
			log.Warningf("Unsupported xattr at inode (nid=%v)", nid)
			return Inode{}, linuxerr.ENOTSUP
		}

` + start + "\n", read + start + ` + int(xattrAreaSize(ino.XattrCount))
`}
}
