// Hard links of lower layers stay hard links, as with Linux's option index=on. This file is added
// by Turnstone's build.
//
// When a file of a lower layer that has several names is copied up, the copy is made in
// WORKDIR/index, and linked to the name's place in the upper layer. Each other name becomes a link
// of the same copy as soon as it is looked up; those that have a dentry, at once. An entry of the
// index is called MINOR-INODE, by the lower file's device and inode number. Its attribute
// trusted.overlay.origin is the path of the name by which the file was copied up, from the
// overlay's root. The entry goes when the file's last name in the overlay does.

package overlay

import (
	"fmt"
	"slices"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/sync"
)

// indexDir is the index's name in the directory of the option workdir.
const indexDir = "index"

// links are the files of an overlay that have several names.
//
// Lock order: linkedFile.copying, dentry.copyMu, links.mu. A thread that holds linkedFile.copying
// has locked filesystem.renameMu, and no dentry.copyMu when it locks linkedFile.copying.
//
// +stateify savable
type links struct {
	// work is the directory of the option workdir, on the upper layer's mount. Without it lower
	// files are copied up name by name. work is immutable.
	work vfs.VirtualDentry

	// mu protects all below, and the fields of linkedFile.
	mu sync.Mutex `state:"nosave"`

	// index is work's directory indexDir, from when it is needed.
	index vfs.VirtualDentry

	// files are keyed by what stat(2) shows: a lower file that was copied up has two keys. A lower
	// file stays here when one of its names has been copied up or hidden.
	files map[layerDevNoAndIno]*linkedFile
}

// linkedFile is a file with several names.
//
// +stateify savable
type linkedFile struct {
	// copying is locked while one of the names is copied up, and all that have dentries after it.
	copying sync.Mutex `state:"nosave"`

	// dentries are those of the file, in the order of their lookups.
	dentries []*dentry

	// names is the number of names that the lower file has, and lower the number of those that
	// were neither copied up nor hidden. Both are 0 for a file of the upper layer.
	names, lower uint32

	// entry is the name of the copy in the index, or empty.
	entry string
}

// existingCopy is the type of a file that needs no copy, because the index has it.
const existingCopy = 0

// initLinks prepares the index of an overlay that has an upper layer and a workdir. It makes no
// file.
func (fs *filesystem) initLinks(ctx context.Context, vfsObj *vfs.VirtualFilesystem, vfsroot vfs.VirtualDentry, options string) {
	fs.links.files = make(map[layerDevNoAndIno]*linkedFile)
	workdir, ok := vfs.GenericParseMountOptions(options)["workdir"]
	if !ok || !fs.opts.UpperRoot.Ok() {
		return
	}
	vd, err := vfsObj.GetDentryAt(ctx, fs.creds, &vfs.PathOperation{
		Root:               vfsroot,
		Start:              vfsroot,
		Path:               fspath.Parse(workdir),
		FollowFinalSymlink: true,
	}, &vfs.GetDentryOptions{CheckSearchable: true})
	if err != nil {
		ctx.Infof("overlay.filesystem.initLinks: failed to resolve workdir %q: %v", workdir, err)
		return
	}
	defer vd.DecRef(ctx)
	if upper := fs.opts.UpperRoot.Mount(); vd.Mount().Filesystem() == upper.Filesystem() {
		fs.links.work = vfs.MakeVirtualDentry(upper, vd.Dentry())
		fs.links.work.IncRef()
	}
}

func (fs *filesystem) releaseLinks(ctx context.Context) {
	for _, vd := range []vfs.VirtualDentry{fs.links.work, fs.links.index} {
		if vd.Ok() {
			vd.DecRef(ctx)
		}
	}
}

// identity returns what stat(2) shows of a file other than a directory.
func (d *dentry) identity() layerDevNoAndIno {
	return layerDevNoAndIno{layerDevNumber{d.devMajor.Load(), d.devMinor.Load()}, d.ino.Load()}
}

// join adds d, whose layer shows the given number of names, to its file's dentries. It returns
// false if the index has a copy that d is not linked to yet.
func (l *links) join(d *dentry, names uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, copied := d.identity(), d.isCopiedUp()
	f := l.files[id]
	if f == nil {
		if names < 2 || !copied && !l.work.Ok() {
			return true
		}
		f = &linkedFile{}
		if !copied {
			f.names, f.lower = names, names
		}
		l.files[id] = f
	}
	if !copied && f.entry != "" {
		return false
	}
	f.add(d)
	return true
}

// Preconditions: links.mu must be locked.
func (f *linkedFile) add(d *dentry) {
	if !slices.Contains(f.dentries, d) {
		f.dentries = append(f.dentries, d)
	}
}

// forget counts one name of the lower file less. An image may have more than it says.
//
// Preconditions: links.mu must be locked.
func (f *linkedFile) forget() {
	if f.lower > 0 {
		f.lower--
	}
}

// leave removes a dentry that is destroyed.
func (l *links) leave(d *dentry) {
	if d.isDir() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.files[d.identity()]
	if f == nil {
		return
	}
	if i := slices.Index(f.dentries, d); i >= 0 {
		f.dentries = slices.Delete(f.dentries, i, i+1)
	}
	if len(f.dentries) == 0 && f.names == f.lower {
		delete(l.files, d.identity())
	}
}

// enterLinksLocked adds a dentry that has just been looked up to its file. If the index has the
// file's copy, it links the copy to the name.
//
// Preconditions: as for lookupLocked; d has a name and a parent.
func (d *dentry) enterLinksLocked(ctx context.Context, names uint32) error {
	if d.isDir() || d.fs.links.join(d, names) {
		return nil
	}
	return d.copyUpLocked(ctx)
}

// copyUpMaybeSyntheticMountpointLocked ensures that d exists on the upper layer, and with it the
// file's other names that have dentries: a file that is open or mapped by another name must show
// what is written by this one.
//
// Preconditions: filesystem.renameMu must be locked.
func (d *dentry) copyUpMaybeSyntheticMountpointLocked(ctx context.Context, forSyntheticMountpoint bool) error {
	if d.isCopiedUp() {
		return nil
	}
	f := d.fs.links.lowerFile(d)
	if f == nil && d.vfsd.IsDead() && !d.isDir() && d.fs.links.work.Ok() {
		f = &linkedFile{} // an open file without a name: its copy is only made in the index
	}
	if f == nil {
		return d.copyUpOneLocked(ctx, forSyntheticMountpoint, nil)
	}
	f.copying.Lock()
	defer f.copying.Unlock()
	if err := d.copyUpOneLocked(ctx, false, f); err != nil {
		return err
	}
	for _, other := range d.fs.links.others(f) {
		if err := other.copyUpOneLocked(ctx, false, f); err != nil {
			return err
		}
	}
	return nil
}

// lowerFile returns the file of a dentry that is not copied up, or nil if it has one name.
func (l *links) lowerFile(d *dentry) *linkedFile {
	if d.isDir() {
		return nil
	}
	d.copyMu.RLock()
	defer d.copyMu.RUnlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.files[d.identity()]
}

// others returns the dentries that are not copied up, of a file that is.
func (l *links) others(f *linkedFile) []*dentry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.entry == "" {
		return nil
	}
	var ds []*dentry
	for _, d := range f.dentries {
		if !d.isCopiedUp() {
			ds = append(ds, d)
		}
	}
	return ds
}

// copyOf returns the name of the file's copy in the index, or the empty string. f may be nil.
func (l *links) copyOf(f *linkedFile) string {
	if f == nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return f.entry
}

// prepareLink returns the type of the file that d's copy-up makes at *pop: existingCopy if the
// copy exists, so that *pop becomes a link to it. The first copy of a file with several names is
// made in the index instead.
//
// Preconditions: d.copyMu must be locked for writing; f is nil, or f.copying must be locked.
func (d *dentry) prepareLink(ctx context.Context, f *linkedFile, ftype uint32, lower *linux.Statx, pop *vfs.PathOperation) (uint32, error) {
	if f == nil {
		return ftype, nil
	}
	if d.fs.links.copyOf(f) != "" {
		return existingCopy, nil
	}
	if err := d.fs.makeIndex(ctx); err != nil {
		return 0, err
	}
	*pop = d.fs.links.entry(fmt.Sprintf("%d-%d", lower.DevMinor, lower.Ino))
	// Left by another mount with the same workdir: its names in the upper layer keep it.
	vfsObj := d.fs.vfsfs.VirtualFilesystem()
	if err := vfsObj.UnlinkAt(ctx, d.fs.creds, pop); err != nil && !linuxerr.Equals(linuxerr.ENOENT, err) {
		return 0, err
	}
	return ftype, nil
}

// makeIndex makes the index's directory if there is none.
func (fs *filesystem) makeIndex(ctx context.Context) error {
	l := &fs.links
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.index.Ok() {
		return nil
	}
	vfsObj := fs.vfsfs.VirtualFilesystem()
	pop := vfs.PathOperation{Root: l.work, Start: l.work, Path: fspath.Parse(indexDir)}
	if err := vfsObj.MkdirAt(ctx, fs.creds, &pop, &vfs.MkdirOptions{Mode: linux.ModeUserAll}); err != nil && !linuxerr.Equals(linuxerr.EEXIST, err) {
		return err
	}
	vd, err := vfsObj.GetDentryAt(ctx, fs.creds, &pop, &vfs.GetDentryOptions{CheckSearchable: true})
	if err != nil {
		return err
	}
	l.index = vd
	return nil
}

// entry returns the path of an entry of the index.
func (l *links) entry(name string) vfs.PathOperation {
	return vfs.PathOperation{Root: l.index, Start: l.index, Path: fspath.Parse(name)}
}

// linkCopyLocked makes d the copy that the index has, and *pop a link to it; d has no name if it
// was deleted. It returns the options of d's mappings if d is mapped.
//
// Preconditions: as for prepareLink, which has returned existingCopy.
func (d *dentry) linkCopyLocked(ctx context.Context, f *linkedFile, pop *vfs.PathOperation) (*memmap.MMapOpts, error) {
	vfsObj := d.fs.vfsfs.VirtualFilesystem()
	name := d.fs.links.copyOf(f)
	if name == "" {
		return nil, linuxerr.ENOENT
	}
	entry := d.fs.links.entry(name)
	dead := d.vfsd.IsDead()
	if dead {
		pop = &entry
	} else if err := vfsObj.LinkAt(ctx, d.fs.creds, &entry, pop); err != nil {
		return nil, err
	}
	vd, opts, err := d.takeCopy(ctx, pop)
	if err != nil {
		if !dead {
			d.unlinkUpper(ctx, pop)
		}
		return nil, err
	}
	d.upperVD = vd
	l := &d.fs.links
	l.mu.Lock()
	defer l.mu.Unlock()
	if !dead {
		f.forget()
	}
	f.add(d)
	return opts, nil
}

// takeCopy takes over the attributes of the copy at pop.
//
// Preconditions: d.copyMu must be locked for writing.
func (d *dentry) takeCopy(ctx context.Context, pop *vfs.PathOperation) (vd vfs.VirtualDentry, opts *memmap.MMapOpts, err error) {
	vfsObj := d.fs.vfsfs.VirtualFilesystem()
	if vd, err = vfsObj.GetDentryAt(ctx, d.fs.creds, pop, &vfs.GetDentryOptions{}); err != nil {
		return vd, nil, err
	}
	if d.wrappedMappable != nil {
		opts, err = d.mapCopy(ctx, vd)
	}
	var a attributes
	if err == nil {
		a, err = d.fs.attributes(ctx, vd)
	}
	if err != nil {
		vd.DecRef(ctx)
		return vfs.VirtualDentry{}, nil, err
	}
	d.setAttributes(a)
	return vd, opts, nil
}

// mapCopy returns the options of mappings of the file vd.
func (d *dentry) mapCopy(ctx context.Context, vd vfs.VirtualDentry) (*memmap.MMapOpts, error) {
	fd, err := d.fs.vfsfs.VirtualFilesystem().OpenAt(ctx, d.fs.creds, &vfs.PathOperation{Root: vd, Start: vd}, &vfs.OpenOptions{Flags: linux.O_RDWR})
	if err != nil {
		return nil, err
	}
	defer fd.DecRef(ctx)
	opts := &memmap.MMapOpts{Perms: hostarch.ReadWrite, MaxPerms: hostarch.ReadWrite}
	if err := fd.ConfigureMMap(ctx, opts); err != nil {
		return nil, err
	}
	if opts.MappingIdentity != nil {
		opts.MappingIdentity.DecRef(ctx)
	}
	return opts, nil
}

// unlinkUpper removes what a failed copy-up has made.
func (d *dentry) unlinkUpper(ctx context.Context, pop *vfs.PathOperation) {
	if err := d.fs.vfsfs.VirtualFilesystem().UnlinkAt(ctx, d.fs.creds, pop); err != nil {
		panic(fmt.Sprintf("unrecoverable overlayfs inconsistency: failed to delete a link after copy-up error: %v", err))
	}
}

// finishCopyLocked completes d's new copy in the upper layer: with its attributes, and if it is in
// the index, with a link to it in the directory parent, unless d was deleted.
//
// Preconditions: d.copyMu must be locked for writing; f is nil, or f.copying must be locked; made
// is what prepareLink returned.
func (d *dentry) finishCopyLocked(ctx context.Context, f *linkedFile, made uint32, parent *dentry, pop *vfs.PathOperation) error {
	if made == existingCopy {
		return nil
	}
	if err := d.copyXattrsLocked(ctx); err != nil || f == nil {
		return err
	}
	vfsObj := d.fs.vfsfs.VirtualFilesystem()
	if err := vfsObj.SetXattrAt(ctx, d.fs.creds, pop, &vfs.SetXattrOptions{
		Name:  d.fs.xattrPrefix + "origin",
		Value: "/" + genericDebugPathname(d.fs, d),
	}); err != nil {
		return err
	}
	stat, err := vfsObj.StatAt(ctx, d.fs.creds, pop, &vfs.StatOptions{Mask: linux.STATX_INO})
	if err != nil {
		return err
	}
	dead := d.vfsd.IsDead()
	if !dead {
		place := vfs.PathOperation{Root: parent.upperVD, Start: parent.upperVD, Path: fspath.Parse(d.name)}
		if err := vfsObj.LinkAt(ctx, d.fs.creds, pop, &place); err != nil {
			return err
		}
		vd, err := vfsObj.GetDentryAt(ctx, d.fs.creds, &place, &vfs.GetDentryOptions{})
		if err != nil {
			d.unlinkUpper(ctx, &place)
			return err
		}
		d.upperVD.DecRef(ctx)
		d.upperVD = vd
	}
	l := &d.fs.links
	l.mu.Lock()
	defer l.mu.Unlock()
	f.entry = pop.Path.Begin.String()
	if !dead {
		f.forget()
	}
	f.add(d)
	l.files[layerDevNoAndIno{layerDevNumber{stat.DevMajor, stat.DevMinor}, stat.Ino}] = f
	d.fs.dropCopyLocked(ctx, f)
	return nil
}

// removeNameLocked is called when d's name is gone, and removes the copy from the index if it was
// the last one.
//
// Preconditions: the parent's dirMu must be locked; d's name cannot be copied up any more.
func (fs *filesystem) removeNameLocked(ctx context.Context, d *dentry) {
	l := &fs.links
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.files[d.identity()]
	if f == nil {
		return
	}
	if !d.isCopiedUp() {
		f.forget()
	}
	fs.dropCopyLocked(ctx, f)
}

// dropCopyLocked removes f's copy from the index if no name is left.
//
// Preconditions: links.mu must be locked.
func (fs *filesystem) dropCopyLocked(ctx context.Context, f *linkedFile) {
	if f.entry == "" || f.lower > 0 {
		return
	}
	vfsObj := fs.vfsfs.VirtualFilesystem()
	pop := fs.links.entry(f.entry)
	stat, err := vfsObj.StatAt(ctx, fs.creds, &pop, &vfs.StatOptions{Mask: linux.STATX_NLINK})
	if err == nil && stat.Nlink == 1 {
		err = vfsObj.UnlinkAt(ctx, fs.creds, &pop)
		f.entry = ""
	}
	if err != nil {
		ctx.Warningf("overlay.filesystem.dropCopyLocked: the index keeps %q: %v", f.entry, err)
	}
}

// countNames makes stat show the number of names that the overlay has.
func (d *dentry) countNames(stat *linux.Statx) {
	if stat.Mask&linux.STATX_NLINK == 0 || d.isDir() {
		return
	}
	copied := d.isCopiedUp()
	l := &d.fs.links
	l.mu.Lock()
	f := l.files[d.identity()]
	switch {
	case f == nil:
	case !copied && f.names > 0:
		stat.Nlink = f.lower
	case copied && f.entry != "":
		stat.Nlink += f.lower - 1
	}
	l.mu.Unlock()
	if f == nil && !copied && d.vfsd.IsDead() {
		stat.Nlink = 0
	}
}

// isSameFile reports whether both dentries are names of one file other than a directory.
func (d *dentry) isSameFile(other *dentry) bool {
	return !d.isDir() && !other.isDir() && d.identity() == other.identity()
}

// attributes are what a dentry keeps of its file.
type attributes struct {
	mode, uid, gid uint32
	acl            *vfs.PosixACL
}

func (fs *filesystem) attributes(ctx context.Context, vd vfs.VirtualDentry) (a attributes, err error) {
	vfsObj := fs.vfsfs.VirtualFilesystem()
	pop := vfs.PathOperation{Root: vd, Start: vd}
	stat, err := vfsObj.StatAt(ctx, fs.creds, &pop, &vfs.StatOptions{Mask: linux.STATX_TYPE | linux.STATX_MODE | linux.STATX_UID | linux.STATX_GID})
	if err != nil {
		return a, err
	}
	acl, err := vfsObj.GetPosixACLAt(ctx, fs.creds, &pop, vfs.AccessACL)
	return attributes{uint32(stat.Mode), stat.UID, stat.GID, acl}, err
}

func (d *dentry) setAttributes(a attributes) {
	d.mode.Store(a.mode)
	d.uid.Store(a.uid)
	d.gid.Store(a.gid)
	d.accessACL.Store(a.acl)
}

// shareAttributesLocked is called after a change of d's attributes. d and the file's other dentries
// take over what the upper layer made of it, such as a mode without the bits for privileges.
//
// Preconditions: d.copyMu must be locked for writing; d is copied up.
func (d *dentry) shareAttributesLocked(ctx context.Context) {
	if d.isDir() {
		return
	}
	l := &d.fs.links
	l.mu.Lock()
	defer l.mu.Unlock()
	a, err := d.fs.attributes(auth.ContextWithCredentials(ctx, d.fs.creds), d.upperVD)
	if err != nil {
		ctx.Warningf("overlay.dentry.shareAttributesLocked: %v", err)
		return
	}
	d.setAttributes(a)
	if f := l.files[d.identity()]; f != nil {
		for _, other := range f.dentries {
			if other.isCopiedUp() {
				other.setAttributes(a)
			}
		}
	}
}

// keepTimes returns a function that gives the directory d, which is on the upper layer, the times
// that it has now: a copy-up is no change of the directory.
func (d *dentry) keepTimes(ctx context.Context) func() {
	vfsObj := d.fs.vfsfs.VirtualFilesystem()
	pop := vfs.PathOperation{Root: d.upperVD, Start: d.upperVD}
	const times = linux.STATX_ATIME | linux.STATX_MTIME
	stat, err := vfsObj.StatAt(ctx, d.fs.creds, &pop, &vfs.StatOptions{Mask: times})
	return func() {
		if err == nil {
			err = vfsObj.SetStatAt(ctx, d.fs.creds, &pop, &vfs.SetStatOptions{Stat: linux.Statx{
				Mask:  stat.Mask & times,
				Atime: stat.Atime,
				Mtime: stat.Mtime,
			}})
		}
		if err != nil {
			ctx.Infof("overlay.dentry.keepTimes: %v", err)
		}
	}
}
