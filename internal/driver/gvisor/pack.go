package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/substrate"
)

// packFormat is the version of a packManifest.
const packFormat = 1

// packFile is the name of a pack's manifest.
const packFile = "pack.json"

// A packManifest describes a packed checkpoint. It depends on the machine that packed it only by
// Identity.
type packManifest struct {
	Format   int      `json:"format"`
	Identity identity `json:"identity"`
	// the model whose digest is in Identity; nil in older manifests
	CPU    *host.Model      `json:"cpu,omitempty"`
	Taken  time.Time        `json:"taken"`
	Files  []packed         `json:"files"`
	Layers []string         `json:"layers,omitempty"` // names of images, lowest first
	Sum    turnstone.Digest `json:"sum"`              // digest of the manifest without Sum
}

// A packed is a file of the checkpoint.
type packed struct {
	Name   string           `json:"name"`
	Size   int64            `json:"size"`   // in bytes, unpacked
	Digest turnstone.Digest `json:"digest"` // unpacked
}

func (p packManifest) sum() turnstone.Digest {
	p.Sum = ""
	b, _ := json.Marshal(p) // plain data always encodes
	return turnstone.DigestBytes(b)
}

// suffix ends the names of packed files.
const suffix = ".zst"

// Pack implements substrate.Keeper.
func (s *Substrate) Pack(ctx context.Context, m substrate.Machine, dir,
	out string) (substrate.Packed, error) {
	p, err := s.pack(ctx, m, dir, out)
	if err != nil {
		_ = os.RemoveAll(out)
	}
	return p, s.wrap("gvisor.pack", err)
}

func (s *Substrate) pack(ctx context.Context, m substrate.Machine, dir,
	out string) (substrate.Packed, error) {
	var result substrate.Packed
	man, files, err := openCheckpoint(ctx, dir)
	if err != nil {
		return result, err
	}
	defer (&images{checkpoint: files}).close()
	if err := s.fits(m, man.Identity); err != nil {
		return result, err
	}
	if err := os.Mkdir(out, 0o700); err != nil {
		return result, err
	}
	p := packManifest{Format: packFormat, Identity: man.Identity, Taken: man.Taken}
	if p.CPU, err = host.CPUModel(); err != nil {
		return result, err
	}
	for i, name := range checkpointFiles {
		if err := compress(ctx, files[i], filepath.Join(out, name+suffix)); err != nil {
			return result, err
		}
		st := man.Files[name]
		p.Files = append(p.Files, packed{name, st.Size, st.Digest})
		result.Files = append(result.Files, name+suffix)
	}
	for _, l := range man.Layers {
		p.Layers = append(p.Layers, filepath.Base(l.Path))
	}
	p.Sum = p.sum()
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return result, err
	}
	result.Files, result.Layers = append(result.Files, packFile), p.Layers
	return result, filestamp.WriteFile(filepath.Join(out, packFile), b, 0o600)
}

func compress(ctx context.Context, src io.Reader, path string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := zstd.NewWriter(f)
	if err != nil {
		return err
	}
	_, err = io.Copy(z, contextReader{ctx, src})
	return errors.Join(err, z.Close())
}

// Unpack implements substrate.Keeper.
func (s *Substrate) Unpack(ctx context.Context, m substrate.Machine, packed substrate.PackedFiles,
	dir string) error {
	err := s.unpack(ctx, m, packed, dir)
	if err != nil {
		_ = os.RemoveAll(dir)
	}
	return s.wrap("gvisor.unpack", err)
}

func (s *Substrate) unpack(ctx context.Context, m substrate.Machine, from substrate.PackedFiles,
	dir string) error {
	damaged := func(what string, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case turnstone.IsFull(err):
			return err
		}
		return turnstone.Errorf("gvisor.unpack", turnstone.KindIntegrity, "the saved sandbox",
			"%s: %w", what, err).WithHint("start from its files instead")
	}
	b, err := snapshots.ReadIn(from, packFile, snapshots.MaxManifest)
	if err != nil {
		return damaged("manifest", err)
	}
	p, err := parsePack(b)
	if err != nil {
		return damaged("manifest", err)
	}
	now, err := s.identity(m)
	if err != nil {
		return err
	}
	if err := snapshots.Misfit("gvisor.restore", p.Identity.movedTo(now, p.CPU)); err != nil {
		return err
	}
	if err := snapshots.SameLayers(p.Layers, m.Layers); err != nil {
		return damaged("layers", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	man := manifest{Identity: now, Taken: p.Taken} // from here on it is a sandbox of this host
	for _, file := range p.Files {
		if most := int64(m.Shape.Memory) + int64(m.Shape.Disk) + maxObjects; file.Size > most {
			return damaged(file.Name, fmt.Errorf("it has %d bytes, at most %d can be right",
				file.Size, most))
		}
		if err := decompress(ctx, from, filepath.Join(dir, file.Name), file); err != nil {
			return damaged(file.Name, err)
		}
	}
	if man.Layers, err = snapshots.Layers(m.Layers); err != nil {
		return damaged("layers", err)
	}
	return man.seal(ctx, dir)
}

// parsePack checks a manifest, which is untrusted.
func parsePack(b []byte) (packManifest, error) {
	var p packManifest
	if err := json.Unmarshal(b, &p); err != nil {
		return p, err
	}
	if p.Format != packFormat {
		return p, fmt.Errorf("it has format %d, this program reads %d", p.Format, packFormat)
	}
	if p.Sum != p.sum() {
		return p, errors.New("it does not match its digest")
	}
	var names []string
	for _, f := range p.Files {
		names = append(names, f.Name)
		if f.Size < 0 || f.Size > maxFile {
			return p, fmt.Errorf("%.40q has %d bytes", f.Name, f.Size)
		}
	}
	if !slices.Equal(names, checkpointFiles) {
		return p, fmt.Errorf("it has the files %.200q", names)
	}
	return p, nil
}

// maxFile bounds a file of a checkpoint, in bytes: the memory of the largest machine and its disk.
const maxFile = int64(turnstone.MaxMemory) + int64(turnstone.MaxDisk)

// maxObjects bounds a checkpoint without the sandbox's memory and disk, in bytes: the kernel's own
// objects.
const maxObjects = 1 << 30

// decompress writes the file of from that want describes to a new file at to, and checks it against
// want.
func decompress(ctx context.Context, from substrate.PackedFiles, to string,
	want packed) (err error) {
	in, err := from.Open(want.Name + suffix)
	if err != nil {
		return err
	}
	defer in.Close()
	z, err := zstd.NewReader(contextReader{ctx, in}, zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxMemory(64<<20))
	if err != nil {
		return err
	}
	defer z.Close()
	out, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	digest, err := turnstone.DigestReader(io.TeeReader(io.LimitReader(z, want.Size+1), out))
	if err != nil {
		return err
	}
	if digest != want.Digest {
		return fmt.Errorf("it is %s instead of %s", digest.Short(), want.Digest.Short())
	}
	return nil
}

// A contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// movedTo names the first property in which a kept sandbox of identity id, on a CPU of the given
// model, is incompatible with identity now; "" if there is none. The microcode may differ, the CPU
// may have more features, and the host's kernel does not matter, because a sandbox has gVisor's
// kernel.
func (id identity) movedTo(now identity, cpu *host.Model) string {
	why := ""
	if id.HostCPU != now.HostCPU {
		why, id.HostCPU = cpu.Differs(), now.HostCPU
	}
	id.Kernel = now.Kernel
	return cmp.Or(id.differs(now), why)
}
