package gvisor

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/substrate"
)

// Snapshot implements substrate.Snapshotter.
func (v *sandbox) Snapshot(ctx context.Context, dir string) error {
	v.snapshots.Lock()
	defer v.snapshots.Unlock()
	return v.NotSnapshotted(ctx, "gvisor.snapshot", dir, v.snapshot(ctx, dir))
}

func (v *sandbox) snapshot(ctx context.Context, dir string) error {
	return named.Write(dir, func(tmp string) error {
		if err := v.checkpoint(ctx, tmp, true); err != nil {
			return err
		}
		layers, err := snapshots.Layers(v.layers)
		if err != nil {
			return err
		}
		man := manifest{Identity: v.from, Taken: time.Now().UTC(), Layers: layers}
		return man.seal(ctx, tmp)
	})
}

// Mount implements substrate.Mounter.
func (v *sandbox) Mount(ctx context.Context, path, dir string) error {
	if strings.Contains(path+dir, ":") { // it separates them
		return turnstone.Errorf("gvisor.mount", turnstone.KindInvalid, path, "a colon is in its path, or in %s", dir)
	}
	if err := v.control(ctx, "debug", "--mount=erofs:"+path+":"+dir, string(v.ID())); err != nil {
		return v.failed("gvisor.mount", err)
	}
	return nil
}

// RestoreFrom implements substrate.Resumer. A clone shares no memory with others: it reads the
// checkpoint as it starts.
func (s *Substrate) RestoreFrom(ctx context.Context, m substrate.Machine,
	dir string) (substrate.Sandbox, error) {
	man, files, err := openCheckpoint(ctx, dir)
	if errors.Is(err, os.ErrNotExist) {
		err = damaged(dir, "manifest", err)
	}
	if err != nil {
		return nil, s.wrap("gvisor.restore", err)
	}
	in := &images{checkpoint: files}
	if err := s.fits(m, man.Identity); err != nil {
		in.close()
		return nil, err
	}
	m.Layers, m.Home = nil, ""
	for _, l := range man.Layers {
		if !l.Stamp.Fresh(l.Path) {
			in.close()
			return nil, damaged(dir, "layer "+l.Path, errors.New("was touched or is missing"))
		}
		m.Layers = append(m.Layers, l.Path)
	}
	in, err = s.openImages(ctx, m)
	if err != nil {
		(&images{checkpoint: files}).close()
		return nil, s.wrap("gvisor.restore", err)
	}
	in.checkpoint = files
	return s.restore(ctx, in, m, man.Identity)
}

// fits returns an error if a sandbox that is started from m cannot resume a sandbox of the given
// identity.
func (s *Substrate) fits(m substrate.Machine, id identity) error {
	now, err := s.identity(m)
	if err != nil {
		return s.wrap("gvisor.restore", err)
	}
	if why := id.differs(now); why != "" {
		return turnstone.Errorf("gvisor.restore", turnstone.KindUnavailable, "the saved sandbox",
			"it was saved with another %s", why).
			WithHint("start from the files of the saved sandbox instead")
	}
	return nil
}
