package kernel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cavaliergopher/cpio"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
)

// initramfsVersion changes when the same agent and modules must result in another file.
const initramfsVersion = 1

// initramfsAge is the age at which an unused initramfs is removed.
const initramfsAge = 30 * 24 * time.Hour

// A Program is a static ELF program identified by its digest, and read only when needed.
type Program struct {
	Digest turnstone.Digest
	Read   func() ([]byte, error)
}

// ForDisksInMemory returns k for a guest that also loads the modules of Memory.
func (k *Kernel) ForDisksInMemory() *Kernel {
	with := *k
	with.Modules = slices.Concat(k.Modules, k.Memory)
	return &with
}

// Initramfs returns the path and the digest of the initial root file system. It contains agent, the
// agent's program, as /init, and the kernel's modules as /modules/NN-name.ko in load order: an
// uncompressed cpio archive in the "newc" format
// (Documentation/driver-api/early-userspace/buffer-format.rst). The same agent and modules result
// in the same bytes. The file is stored in dir under a name derived from its content, and verified
// before it is returned.
func (k *Kernel) Initramfs(ctx context.Context, dir string,
	agent Program) (path string, digest turnstone.Digest, err error) {
	const op = "kernel.initramfs"
	failed := func(err error) error {
		return turnstone.NewError(op, turnstone.KindUnavailable, dir, err).
			WithHint("check that the disk has free space and the folder is writable")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", "", failed(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", failed(err)
	}
	path = filepath.Join(dir, "initramfs-"+k.initramfsKey(agent.Digest)+".cpio")
	if s, err := keptInitramfs(ctx, path); err == nil {
		return path, s.Digest, nil
	}
	lock, err := statedir.Acquire(ctx, filepath.Join(dir, "initramfs.lock"), nil)
	if err != nil {
		return "", "", err
	}
	defer lock.Release()
	if s, err := keptInitramfs(ctx, path); err == nil {
		return path, s.Digest, nil
	}
	sweepInitramfs(dir, path)
	program, err := agent.Read()
	if err != nil {
		return "", "", err
	}
	if !isELF(program) || turnstone.DigestBytes(program) != agent.Digest {
		return "", "", turnstone.Errorf(op, turnstone.KindInvalid, "agent",
			"is not an ELF program, or not the expected program").
			WithHint("build the agent first: make build")
	}
	var archive bytes.Buffer
	if err := k.writeInitramfs(&archive, program); err != nil {
		return "", "", failed(err)
	}
	if err := filestamp.WriteFile(path, archive.Bytes(), 0o444); err != nil {
		return "", "", failed(err)
	}
	s, err := filestamp.Of(ctx, path)
	if err != nil {
		return "", "", failed(err)
	}
	if want := turnstone.DigestBytes(archive.Bytes()); s.Digest != want {
		return "", "", turnstone.Errorf(op, turnstone.KindIntegrity, path,
			"reads back as %s, written as %s", s.Digest, want).WithHint("check the disk")
	}
	if err := writeStamp(path, s); err != nil {
		return "", "", failed(err)
	}
	return path, s.Digest, nil
}

// initramfsKey identifies the content: the agent and the modules in their order.
func (k *Kernel) initramfsKey(agent turnstone.Digest) string {
	h := sha256.New()
	fmt.Fprintf(h, "initramfs %d\n%s\n", initramfsVersion, agent)
	for _, m := range k.Modules {
		fmt.Fprintf(h, "%s %s\n", m.Name, m.Digest)
	}
	return hex.EncodeToString(h.Sum(nil))[:24]
}

// keptInitramfs returns the stamp of the file at path if the file is intact.
func keptInitramfs(ctx context.Context, path string) (filestamp.Stamp, error) {
	b, err := os.ReadFile(path + ".json")
	if err != nil {
		return filestamp.Stamp{}, err
	}
	var s filestamp.Stamp
	if err := json.Unmarshal(b, &s); err != nil {
		return filestamp.Stamp{}, err
	}
	now, err := s.Check(ctx, path)
	if err == nil && now != s {
		_ = writeStamp(path, now) // if this fails, the next call reads the file again
	}
	return now, err
}

func writeStamp(path string, s filestamp.Stamp) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return filestamp.WriteFile(path+".json", append(b, '\n'), 0o444)
}

// sweepInitramfs removes archives except keep that were not written for a long time: each new agent
// leaves an old archive behind.
func sweepInitramfs(dir, keep string) {
	found, _ := filepath.Glob(filepath.Join(dir, "initramfs-*.cpio"))
	for _, path := range found {
		if fi, err := os.Stat(path); err == nil && path != keep &&
			time.Since(fi.ModTime()) > initramfsAge {
			_ = os.Remove(path + ".json")
			_ = os.Remove(path)
		}
	}
}

// writeInitramfs writes the archive.
func (k *Kernel) writeInitramfs(out io.Writer, agent []byte) error {
	w := cpio.NewWriter(out)
	inode := int64(0)
	add := func(name string, mode cpio.FileMode, content []byte) error {
		inode++
		links := 1
		if mode.IsDir() {
			links = 2
		}
		err := w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(content)),
			Inode: inode, Links: links})
		if err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	}
	for _, dir := range []string{"dev", "modules", "newroot", "proc", "run", "sys"} {
		if err := add(dir, cpio.TypeDir|0o755, nil); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	inode++
	if err := writeConsole(out, inode); err != nil {
		return err
	}
	for _, m := range k.Modules {
		content, err := os.ReadFile(m.Path)
		if err != nil {
			return err
		}
		if turnstone.DigestBytes(content) != m.Digest {
			return fmt.Errorf("%s is damaged", m.Path)
		}
		if err := add("modules/"+filepath.Base(m.Path), cpio.TypeReg|0o444, content); err != nil {
			return err
		}
	}
	if err := add("init", cpio.TypeReg|0o755, agent); err != nil {
		return err
	}
	return w.Close()
}

// writeConsole writes the entry of /dev/console, character device 5:1. The library sets the device
// number to zero, so writeConsole patches the header: c_rdevmajor and c_rdevminor, eight hex digits
// each, at offset 78.
func writeConsole(out io.Writer, inode int64) error {
	var entry bytes.Buffer
	w := cpio.NewWriter(&entry)
	err := w.WriteHeader(&cpio.Header{Name: "dev/console", Mode: cpio.TypeChar | 0o600,
		Inode: inode, Links: 1})
	if err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	b := entry.Bytes()
	if len(b) < 110 || strings.Trim(string(b[78:94]), "0") != "" {
		return errors.New("cpio: unexpected header")
	}
	copy(b[78:94], "0000000500000001")
	_, err = out.Write(b)
	return err
}
