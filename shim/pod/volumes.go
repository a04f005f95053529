package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/shim/rootfs"
	"turnstone.dev/turnstone/shim/spec"
)

// Bounds of a volume that is copied in.
const (
	maxVolume = 1 << 30
	maxFiles  = 100_000
	maxBack   = 64 << 10 // of a file that is copied out
)

// copyTries is how often a volume is copied that the kubelet replaces meanwhile.
const copyTries = 3

// volumes are what was copied into the sandbox. Containers that name the same folder share its
// copy.
type volumes struct {
	mu    sync.Mutex
	known map[string]*volume // by source
	count int
	stop  context.CancelFunc
	done  sync.WaitGroup
}

type volume struct {
	dir     string // in the sandbox
	file    bool
	updated bool
	own     bool
	version string
	busy    chan struct{} // has an entry while it is copied
	copied  bool
	users   map[string]bool
}

// addVolumes copies the container's volumes and sets the sources of their mounts.
func (c *Container) addVolumes(ctx context.Context) error {
	for _, v := range c.spec.Volumes {
		m := &c.spec.Mounts[v.Mount]
		st, err := os.Stat(v.Source)
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
		if !st.IsDir() && !st.Mode().IsRegular() {
			return &spec.Refusal{Field: "mounts", Why: fmt.Sprintf(
				"%.100q: its source is neither a folder nor a file", m.Target)}
		}
		at, err := c.pod.volume(ctx, c.ID, v, st)
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
		m.Source, m.Sub, m.File = at.dir, v.Sub, at.file
		if at.file {
			m.Source = path.Join(at.dir, "file")
		}
		if v.Back {
			c.back[m.Source] = v.Source
		}
	}
	return nil
}

// volume returns the copy of v's source, which is made if it is new.
func (p *Pod) volume(ctx context.Context, id string, v spec.Volume, st fs.FileInfo) (
	*volume, error) {
	vs := &p.volumes
	vs.mu.Lock()
	if vs.known == nil {
		vs.known = map[string]*volume{}
	}
	at := vs.known[v.Source]
	if at == nil {
		at = &volume{dir: volumeDir(vs.count), file: !st.IsDir(), updated: v.Updated && st.IsDir(),
			own: v.Own, users: map[string]bool{}, busy: make(chan struct{}, 1)}
		vs.count++
		vs.known[v.Source] = at
	}
	at.users[id] = true
	if at.updated && vs.stop == nil {
		watch, cancel := context.WithCancel(context.Background())
		vs.stop = cancel
		vs.done.Go(func() { p.update(watch) })
	}
	vs.mu.Unlock()
	if err := at.lock(ctx); err != nil {
		return nil, err
	}
	defer at.unlock()
	if at.copied {
		return at, nil
	}
	var err error
	for range copyTries {
		at.version = versionOf(v.Source)
		if err = p.copyIn(ctx, guest.CmdUnpack, v.Source, "file", at.dir,
			rootfs.Limits{Bytes: maxVolume, Entries: maxFiles}); err == nil || versionOf(v.Source) == at.version {
			break
		}
	}
	at.copied = err == nil
	return at, err
}

// lock waits until nobody copies the volume, which a sandbox that does not answer makes long.
func (v *volume) lock(ctx context.Context) error {
	select {
	case v.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the sandbox does not answer: %w", ctx.Err())
	}
}

func (v *volume) unlock() { <-v.busy }

// versionOf identifies the content of a volume that the kubelet updates: it replaces this link.
func versionOf(source string) string {
	to, _ := os.Readlink(filepath.Join(source, "..data"))
	return to
}

// updateEvery is the time between two looks at volumes that the kubelet updates, which it does once
// a minute.
const updateEvery = 2 * time.Second

// update copies volumes that the kubelet has changed.
func (p *Pod) update(ctx context.Context) {
	t := time.NewTicker(updateEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		p.volumes.mu.Lock()
		all := make(map[string]*volume)
		for source, v := range p.volumes.known {
			if v.updated && len(v.users) > 0 {
				all[source] = v
			}
		}
		p.volumes.mu.Unlock()
		for source, v := range all {
			p.updateOne(ctx, source, v)
		}
	}
}

// updateLimit bounds the copy of one volume: the sandbox may not answer.
const updateLimit = 2 * time.Minute

func (p *Pod) updateOne(ctx context.Context, source string, v *volume) {
	ctx, cancel := context.WithTimeout(ctx, updateLimit)
	defer cancel()
	if v.lock(ctx) != nil {
		return
	}
	defer v.unlock()
	now := versionOf(source)
	if v.copied && now != "" && now != v.version && p.copyIn(ctx, guest.CmdUpdate, source, "file", v.dir,
		rootfs.Limits{Bytes: maxVolume, Entries: maxFiles}) == nil {
		v.version = now
	}
}

// forget notes that a container uses no volume any more, and returns the folders of those that only
// it had.
func (vs *volumes) forget(id string) (dirs []string) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	for source, v := range vs.known {
		delete(v.users, id)
		if v.own && len(v.users) == 0 {
			delete(vs.known, source)
			dirs = append(dirs, v.dir)
		}
	}
	return dirs
}

func (vs *volumes) close() {
	vs.mu.Lock()
	stop := vs.stop
	vs.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// CopyBack copies the files that the host reads after the container's end, such as its termination
// message. The files of the host exist, and are not links.
func (c *Container) CopyBack(ctx context.Context) error {
	var all error
	for from, to := range c.back {
		text, err := c.pod.readFile(ctx, from, maxBack)
		if err == nil {
			err = overwrite(to, text)
		}
		all = errors.Join(all, err)
	}
	return all
}

func overwrite(name, text string) error {
	root, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer root.Close()
	st, err := root.Lstat(filepath.Base(name))
	if err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, errors.New("it is no file"))
	}
	f, err := root.OpenFile(filepath.Base(name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
