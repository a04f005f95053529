// What Turnstone adds to gVisor's EROFS: extended attributes, access control lists, maps of
// files whose data stands behind their inodes, and slots. This file is added by Turnstone's build.

package erofs

import (
	"os"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/erofs"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/usage"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// maxXattrList is what Linux gives of a list at most, XATTR_LIST_MAX.
const maxXattrList = 64 << 10

func (i *inode) listXattr(ctx context.Context, size uint64) ([]string, error) {
	trusted := auth.CredentialsFromContext(ctx).HasRootCapability(linux.CAP_SYS_ADMIN)
	var names []string
	total := uint64(0)
	err := i.Xattrs(func(name string, _ []byte) bool {
		if trusted || !strings.HasPrefix(name, linux.XATTR_TRUSTED_PREFIX) {
			names = append(names, name)
			total += uint64(len(name)) + 1
		}
		return total <= maxXattrList
	})
	switch {
	case err != nil:
		return nil, err
	case total > maxXattrList:
		return nil, linuxerr.E2BIG
	case size != 0 && total > size:
		return nil, linuxerr.ERANGE
	}
	return names, nil
}

func (i *inode) getXattr(creds *auth.Credentials, opts *vfs.GetXattrOptions) (string, error) {
	if strings.HasPrefix(opts.Name, linux.XATTR_SYSTEM_PREFIX) {
		access, err := i.posixACL(creds, vfs.AccessACL)
		if err != nil {
			return "", err
		}
		inherited, err := i.posixACL(creds, vfs.DefaultACL)
		if err != nil {
			return "", err
		}
		return vfs.ACLGetXattr(creds, opts, linux.FileMode(i.Mode()), access, inherited)
	}
	if err := vfs.CheckXattrPermissions(creds, vfs.MayRead, linux.FileMode(i.Mode()), auth.KUID(i.UID()), opts.Name); err != nil {
		return "", err
	}
	value, found, err := i.xattr(opts.Name)
	switch {
	case err != nil:
		return "", err
	case !found:
		return "", linuxerr.ENODATA
	case opts.Size != 0 && uint64(len(value)) > opts.Size:
		return "", linuxerr.ERANGE
	case opts.Name == linux.XATTR_SECURITY_CAPABILITY:
		return auth.FixupVfsCapDataOnGet(creds, value)
	}
	return value, nil
}

func (i *inode) xattr(wanted string) (value string, found bool, err error) {
	err = i.Xattrs(func(name string, v []byte) bool {
		if name == wanted {
			found, value = true, string(v)
		}
		return !found
	})
	return value, found, err
}

// posixACL returns an access control list, or nil if the inode has none. One that is not valid
// gives nobody access; the file can still be removed.
func (i *inode) posixACL(creds *auth.Credentials, t vfs.ACLType) (*vfs.PosixACL, error) {
	name := linux.XATTR_NAME_POSIX_ACL_ACCESS
	switch {
	case i.IsSymlink():
		return nil, nil
	case t == vfs.DefaultACL && !i.IsDir():
		return nil, nil
	case t == vfs.DefaultACL:
		name = linux.XATTR_NAME_POSIX_ACL_DEFAULT
	}
	value, found, err := i.xattr(name)
	if err != nil || !found {
		return nil, err
	}
	acl, err := vfs.ParsePosixACL([]byte(value), creds.UserNamespace.Root())
	if err != nil {
		return &vfs.PosixACL{}, nil
	}
	return acl, nil
}

func (i *inode) checkPermissions(creds *auth.Credentials, ats vfs.AccessTypes) error {
	acl, err := i.posixACL(creds, vfs.AccessACL)
	if err != nil {
		return err
	}
	return vfs.GenericCheckPermissions(creds, ats, linux.FileMode(i.Mode()), acl, auth.KUID(i.UID()), auth.KGID(i.GID()))
}

// GetPosixACL implements vfs.FileDescriptionImpl.GetPosixACL.
func (fd *fileDescription) GetPosixACL(ctx context.Context, t vfs.ACLType) (*vfs.PosixACL, error) {
	return fd.inode().posixACL(auth.CredentialsFromContext(ctx), t)
}

// A writer of images puts no more than one block behind an inode; maxCopy is what a
// hostile image may make us allocate for one file.
const maxCopy = 1 << 20

// A pageCopy holds the data of a file that is not at the beginning of a page of its
// image, which no memory can be mapped to. It is made when the file is mapped, and
// gone when the last mapping is, and before the sandbox is saved.
type pageCopy struct {
	file *pgalloc.MemoryFile
	fr   memmap.FileRange
}

// translateCopy is Translate for a file whose data is not aligned.
//
// Preconditions: required and optional end within the file's last page.
func (i *inode) translateCopy(ctx context.Context, optional memmap.MappableRange) ([]memmap.Translation, error) {
	i.mapsMu.Lock()
	defer i.mapsMu.Unlock()
	if i.copied == nil {
		c, err := i.copyPages(ctx)
		if err != nil {
			return nil, &memmap.BusError{err}
		}
		i.copied = c
	}
	return []memmap.Translation{{
		Source: optional,
		File:   i.copied.file,
		Offset: i.copied.fr.Start + optional.Start,
		Perms:  hostarch.ReadExecute,
	}}, nil
}

func (i *inode) copyPages(ctx context.Context) (*pageCopy, error) {
	length, ok := hostarch.PageRoundUp(i.Size())
	if !ok || length == 0 || length > maxCopy {
		return nil, linuxerr.ENOTSUP
	}
	ranges, err := i.DataRanges()
	if err != nil {
		return nil, err
	}
	mf := pgalloc.MemoryFileFromContext(ctx)
	if mf == nil {
		return nil, linuxerr.EFAULT
	}
	fr, err := mf.Allocate(length, pgalloc.AllocOpts{Kind: usage.PageCache, Mode: pgalloc.AllocateAndWritePopulate})
	if err != nil {
		return nil, err
	}
	dst, err := mf.MapInternal(fr, hostarch.Write)
	for _, r := range ranges {
		if err == nil && r.Size > 0 {
			_, err = safemem.CopySeq(dst, safemem.BlockSeqOf(safemem.BlockFromSafeSlice(r.Bytes)))
			dst = dst.DropFirst64(r.Size)
		}
	}
	if err != nil {
		mf.DecRef(fr)
		return nil, err
	}
	return &pageCopy{mf, fr}, nil
}

// dropCopyLocked lets go of the copy. What is mapped to it keeps the pages.
//
// +checklocks:i.mapsMu
func (i *inode) dropCopyLocked() {
	if c := i.copied; c != nil {
		c.file.DecRef(c.fr)
		i.copied = nil
	}
}

// slotPrefix begins the mount points of slots: file systems that may have another
// image after a restore than at the checkpoint. Nothing below the root of a slot may
// be in use at the checkpoint then.
const slotPrefix = "/layer/"

func (fs *filesystem) isSlot() bool {
	return strings.HasPrefix(fs.iopts.UniqueID.Path, slotPrefix)
}

// openSlot opens the image that a slot has from now on. One that cannot be opened is
// an empty directory, which who mounts it finds out: the sandbox is worth more than
// one of its images.
func openSlot(fd int) *erofs.Image {
	f := os.NewFile(uintptr(fd), "EROFS image file")
	image, err := erofs.OpenImage(f)
	if err != nil {
		log.Warningf("A slot's image cannot be opened: %v", err)
		f.Close()
		return erofs.BrokenImage()
	}
	return image
}

// PrepareSave implements vfs.FilesystemImplSaveRestoreExtension.PrepareSave. Copies are
// no part of what is saved; what is still mapped to one keeps its pages.
func (fs *filesystem) PrepareSave(context.Context) error {
	for n := range fs.inodeBuckets {
		bucket := &fs.inodeBuckets[n]
		bucket.mu.RLock()
		for _, i := range bucket.inodeMap {
			i.mapsMu.Lock()
			i.dropCopyLocked()
			i.mapsMu.Unlock()
		}
		bucket.mu.RUnlock()
	}
	return nil
}

// BeforeResume implements vfs.FilesystemImplSaveRestoreExtension.BeforeResume.
func (fs *filesystem) BeforeResume(context.Context) {}

// CompleteRestore implements vfs.FilesystemImplSaveRestoreExtension.CompleteRestore.
// A slot with another image gets that image's root.
func (fs *filesystem) CompleteRestore(ctx context.Context, opts vfs.CompleteRestoreOptions) error {
	if !fs.replaced {
		return nil
	}
	fs.replaced = false
	i := fs.root.inode
	fresh, err := fs.image.Inode(fs.image.RootNid())
	if err == nil && !fresh.IsDir() {
		err = linuxerr.ENOTDIR
	}
	if err != nil {
		log.Warningf("A slot's image has no root: %v", err)
		fresh = fs.image.BrokenRoot()
	}
	old := fs.inodeBucket(i.Nid())
	old.mu.Lock()
	old.removeInodeLocked(i.Nid())
	old.mu.Unlock()
	i.Inode = fresh
	bucket := fs.inodeBucket(i.Nid())
	bucket.mu.Lock()
	bucket.inodeMap[i.Nid()] = i
	bucket.mu.Unlock()
	return nil
}
