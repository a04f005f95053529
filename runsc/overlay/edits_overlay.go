package main

// overlayEdits are the changes to gVisor's overlay file system.
var overlayEdits = []edit{
	// Special files of a lower layer: they are copied up before they are opened, so that all who
	// open a named pipe have the same one.
	{"overlay: named pipes can be copied up", "pkg/sentry/fsimpl/overlay/copy_up.go",
		`	case linux.S_IFREG, linux.S_IFDIR, linux.S_IFLNK, linux.S_IFBLK, linux.S_IFCHR:
`, `	case linux.S_IFREG, linux.S_IFDIR, linux.S_IFLNK, linux.S_IFBLK, linux.S_IFCHR, linux.S_IFIFO:
`},
	{"overlay: named pipes, copied up", "pkg/sentry/fsimpl/overlay/copy_up.go",
		`	case linux.S_IFBLK, linux.S_IFCHR:
		if err := vfsObj.MknodAt(`, `	case linux.S_IFBLK, linux.S_IFCHR, linux.S_IFIFO:
		if err := vfsObj.MknodAt(`},
	{"overlay: special files, opened", "pkg/sentry/fsimpl/overlay/filesystem.go",
		`	if !ats.MayWrite() {
		return nil
	}
	if !d.upperVD.Ok() && !d.canBeCopiedUp() {
		return linuxerr.EPERM
	}
	if linux.FileMode(d.mode.Load()).IsSpecialFile() {
		return nil
	}
`, `	if linux.FileMode(d.mode.Load()).IsSpecialFile() {
		if !d.canBeCopiedUp() {
			return nil
		}
		return d.copyUpLocked(ctx)
	}
	if !ats.MayWrite() {
		return nil
	}
`},

	// Hard links of a lower layer: see pkg/sentry/fsimpl/overlay/links_turnstone.go.
	insert("links: the field", "pkg/sentry/fsimpl/overlay/overlay.go",
		`	// MaxFilenameLen is the maximum filename length allowed by the overlayfs.
	maxFilenameLen uint64
`, `
	// links are the files with several names.
	links links
`),
	insert("links: the field's name", "pkg/sentry/fsimpl/overlay/overlay_state_autogen.go",
		`		"maxFilenameLen",
`, `		"links",
`),
	insert("links: saved", "pkg/sentry/fsimpl/overlay/overlay_state_autogen.go",
		`	stateSinkObject.Save(10, &fs.maxFilenameLen)
`, `	stateSinkObject.Save(11, &fs.links)
`),
	insert("links: loaded", "pkg/sentry/fsimpl/overlay/overlay_state_autogen.go",
		`	stateSourceObject.Load(10, &fs.maxFilenameLen)
`, `	stateSourceObject.Load(11, &fs.links)
`),
	insert("links: the index", "pkg/sentry/fsimpl/overlay/overlay.go",
		`	fs.vfsfs.Init(vfsObj, &fstype, fs)
`, `	fs.initLinks(ctx, vfsObj, vfsroot, opts.Data)
`),
	insert("links: the index, released", "pkg/sentry/fsimpl/overlay/overlay.go",
		`func (fs *filesystem) Release(ctx context.Context) {
`, `	fs.releaseLinks(ctx)
`),
	insert("links: a dentry destroyed", "pkg/sentry/fsimpl/overlay/overlay.go",
		`		panic("overlay.dentry.destroyLocked() called with references on the dentry")
	}
`, `	d.fs.links.leave(d)
`),
	insert("links: the number of names", "pkg/sentry/fsimpl/overlay/overlay.go",
		`	stat.DevMinor = d.devMinor.Load()
`, `	d.countNames(stat)
`),
	{"links: looked up, the variable", "pkg/sentry/fsimpl/overlay/filesystem.go",
		`	child := fs.newDentry()
	topLookupLayer := lookupLayerNone
`, `	child := fs.newDentry()
	names := uint32(0)
	topLookupLayer := lookupLayerNone
`},
	insert("links: looked up, in a layer", "pkg/sentry/fsimpl/overlay/filesystem.go",
		`			child.devMinor = atomicbitops.FromUint32(stat.DevMinor)
			child.ino = atomicbitops.FromUint64(stat.Ino)
`, `			names = stat.Nlink
`),
	{"links: looked up", "pkg/sentry/fsimpl/overlay/filesystem.go",
		`	parent.IncRef()
	child.parent.Store(parent)
	child.name = name
	return child, topLookupLayer, nil
`, `	child.parent.Store(parent)
	child.name = name
	if err := child.enterLinksLocked(ctx, names); err != nil {
		child.parent.Store(nil)
		child.destroyLocked(ctx)
		return nil, topLookupLayer, err
	}
	parent.IncRef()
	return child, child.topLookupLayer(), nil
`},
	insert("links: made", "pkg/sentry/fsimpl/overlay/filesystem.go",
		`				fs.cleanupRecreateWhiteout(ctx, vfsObj, &newpop)
			}
			return err
		}
`, `		fs.links.join(old, 2)
`),
	insert("links: renamed to itself", "pkg/sentry/fsimpl/overlay/filesystem.go",
		`	if replaced != nil {
		if opts.Flags&linux.RENAME_NOREPLACE != 0 {
			return linuxerr.EEXIST
		}
`, `		if renamed == replaced || renamed.isSameFile(replaced) {
			return nil
		}
`),
	insert("links: replaced", "pkg/sentry/fsimpl/overlay/filesystem.go",
		`	toDecRef = vfsObj.CommitRenameReplaceDentry(ctx, &handle, &renamed.vfsd, replacedVFSD)
`, `	if replaced != nil {
		fs.removeNameLocked(ctx, replaced)
	}
`),
	insert("links: removed, the layer", "pkg/sentry/fsimpl/overlay/filesystem.go",
		`	// Hold child.copyMu to prevent it from being copied-up during
	// deletion.
	child.copyMu.RLock()
	defer child.copyMu.RUnlock()
`, `	childLayer = child.topLookupLayer()
`),
	insert("links: removed", "pkg/sentry/fsimpl/overlay/filesystem.go",
		`			lowerDentry.Dentry().MarkEvictable()
		}
	}
`, `	fs.removeNameLocked(ctx, child)
`),
	{"links: copied up, one name", "pkg/sentry/fsimpl/overlay/copy_up.go",
		`func (d *dentry) copyUpMaybeSyntheticMountpointLocked(ctx context.Context, forSyntheticMountpoint bool) error {
	// Fast path.
`, `// copyUpOneLocked is copyUpMaybeSyntheticMountpointLocked without the other names of d's file f,
// which is nil if d is its only name. f.copying must be locked.
func (d *dentry) copyUpOneLocked(ctx context.Context, forSyntheticMountpoint bool, f *linkedFile) error {
	// Fast path.
`},
	{"links: copied up, a deleted name", "pkg/sentry/fsimpl/overlay/copy_up.go",
		`	if d.vfsd.IsDead() {
		// Raced`, `	if d.vfsd.IsDead() && f == nil {
		// Raced`},
	insert("links: copied up, to the index", "pkg/sentry/fsimpl/overlay/copy_up.go",
		`	newpop := vfs.PathOperation{
		Root:  parent.upperVD,
		Start: parent.upperVD,
		Path:  fspath.Parse(d.name),
	}
`, `	defer parent.keepTimes(ctx)()
	made, err := d.prepareLink(ctx, f, ftype, &oldStat, &newpop)
	if err != nil {
		return err
	}
`),
	{"links: copied up, the copy that exists", "pkg/sentry/fsimpl/overlay/copy_up.go",
		`	switch ftype {
	case linux.S_IFREG:
		oldFD`, `	switch made {
	case existingCopy:
		if mmapOpts, err = d.linkCopyLocked(ctx, f, &newpop); err != nil {
			return err
		}

	case linux.S_IFREG:
		oldFD`},
	{"links: copied up, to its place", "pkg/sentry/fsimpl/overlay/copy_up.go",
		`	if err := d.copyXattrsLocked(ctx); err != nil {
		cleanup`, `	if err := d.finishCopyLocked(ctx, f, made, parent, &newpop); err != nil {
		cleanup`},
	{"links: attributes changed by descriptor", "pkg/sentry/fsimpl/overlay/regular_file.go",
		`	if err := d.copyUpLocked(ctx); err != nil {
		return err
	}
	// Changes`, `	d.fs.renameMu.RLock()
	err := d.copyUpLocked(ctx)
	d.fs.renameMu.RUnlock()
	if err != nil {
		return err
	}
	// Changes`},
	insert("links: attributes changed by descriptor, shared",
		"pkg/sentry/fsimpl/overlay/regular_file.go", `	d.updateAfterSetStatLocked(&opts)
`, `	d.shareAttributesLocked(ctx)
`),
	insert("links: attributes changed by a write, shared",
		"pkg/sentry/fsimpl/overlay/regular_file.go", `	dentry.mode.Store(uint32(stat.Mode))
`, `	dentry.shareAttributesLocked(ctx)
`),
	insert("links: attributes changed by path, shared",
		"pkg/sentry/fsimpl/overlay/filesystem.go", `	d.updateAfterSetStatLocked(&opts)
`, `	d.shareAttributesLocked(ctx)
`),
	insert("links: access control lists, shared", "pkg/sentry/fsimpl/overlay/filesystem.go",
		`		d.defaultACL.Store(newACL)
	}
`, `	d.shareAttributesLocked(ctx)
`),

	// The umask does not count in a directory with a default access control list.
	insert("umask: of new directories, the option", "pkg/sentry/vfs/options.go",
		`	// Mode is the file mode bits for the created directory.
	Mode linux.FileMode
`, `
	// Asked is Mode without the umask; see ModeIn.
	Asked linux.FileMode
`),
	insert("umask: of new nodes, the option", "pkg/sentry/vfs/options.go",
		`	// Mode is the file type and mode bits for the created file.
	Mode linux.FileMode
`, `
	// Asked is Mode without the umask; see ModeIn.
	Asked linux.FileMode
`),
	insert("umask: of opened files, the option", "pkg/sentry/vfs/options.go",
		`	// created file.
	Mode linux.FileMode
`, `
	// Asked is Mode without the umask; see ModeIn.
	Asked linux.FileMode
`),
	insert("umask: of new directories", "pkg/sentry/syscalls/linux/sys_file.go",
		`		Mode: linux.FileMode(mode & (0777 | linux.S_ISVTX) &^ t.FSContext().Umask()),
`, `		Asked: linux.FileMode(mode & (0777 | linux.S_ISVTX)),
`),
	insert("umask: of new nodes", "pkg/sentry/syscalls/linux/sys_file.go",
		`		Mode:     mode &^ linux.FileMode(t.FSContext().Umask()),
`, `		Asked:    mode,
`),
	insert("umask: of opened files", "pkg/sentry/syscalls/linux/sys_file.go",
		`		Mode:  linux.FileMode(mode & (0777 | linux.S_ISUID | linux.S_ISGID | linux.S_ISVTX) &^ t.FSContext().Umask()),
`, `		Asked: linux.FileMode(mode & (0777 | linux.S_ISUID | linux.S_ISGID | linux.S_ISVTX)),
`),
	insert("umask: of opened files, in an overlay", "pkg/sentry/fsimpl/overlay/filesystem.go",
		`		Flags: opts.Flags&^vfs.FileCreationFlags | linux.O_CREAT | linux.O_EXCL,
		Mode:  opts.Mode,
`, `		Asked: opts.Asked,
`),
	{"umask: of new directories, in a tmpfs", "pkg/sentry/fsimpl/tmpfs/filesystem.go",
		`fs.newDirectory(creds.EffectiveKUID, creds.EffectiveKGID, opts.Mode, parentDir)`,
		`fs.newDirectory(creds.EffectiveKUID, creds.EffectiveKGID, vfs.ModeIn(opts.Mode, opts.Asked, parentDir.inode.defaultACL.Load()), parentDir)`},
	insert("umask: of new nodes, in a tmpfs", "pkg/sentry/fsimpl/tmpfs/filesystem.go",
		`		var childInode *inode
		var err error
`, `		opts.Mode = vfs.ModeIn(opts.Mode, opts.Asked, parentDir.inode.defaultACL.Load())
`),
	{"umask: of opened files, in a tmpfs", "pkg/sentry/fsimpl/tmpfs/filesystem.go",
		`childInode, err := fs.newRegularFile(creds.EffectiveKUID, creds.EffectiveKGID, opts.Mode, parentDir)`,
		`childInode, err := fs.newRegularFile(creds.EffectiveKUID, creds.EffectiveKGID, vfs.ModeIn(opts.Mode, opts.Asked, parentDir.inode.defaultACL.Load()), parentDir)`},
}
