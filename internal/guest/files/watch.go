package files

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/wire"
)

// Limits of watches. The kernel's queue buffers events for a slow client, and reports its overflow
// (inotify(7)).
const (
	MaxWatches     = 32   // of one connection
	maxWatchedDirs = 8192 // of one watch
	maxChanges     = 1024 // of one event
	maxDepth       = 128  // of directories below a recursive watch
)

const watchMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
	unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE_SELF |
	unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW | unix.IN_EXCL_UNLINK

// A watch reports changes of a directory, or of one file, to one connection.
type watch struct {
	f         *Files
	id        string
	root      string // the watched directory, as the client names it
	only      string // the only name to report; "": all
	recursive bool
	in        *os.File // inotify
	once      sync.Once

	dirs map[int32]string // watched directories by watch descriptor; owned by the goroutine
	full bool             // there are more directories than the limit allows
}

// Watches are the watches of one connection.
type Watches struct {
	mu     sync.Mutex
	all    map[string]*watch
	last   int // number in the last watch's ID
	closed bool
}

// add names w and keeps it. It returns false if the connection has ended or has too many watches.
func (ws *Watches) add(w *watch) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed || len(ws.all) >= MaxWatches {
		return false
	}
	if ws.all == nil {
		ws.all = make(map[string]*watch)
	}
	ws.last++
	w.id = "w" + strconv.Itoa(ws.last)
	ws.all[w.id] = w
	return true
}

// take removes a watch and returns it; nil if there is none.
func (ws *Watches) take(id string) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.all[id]
	delete(ws.all, id)
	return w
}

// Close ends all watches.
func (ws *Watches) Close() {
	ws.mu.Lock()
	all := ws.all
	ws.all, ws.closed = nil, true
	ws.mu.Unlock()
	for _, w := range all {
		w.close()
	}
}

// Watch implements FileSystem.watch.
func (f *Files) Watch(ctx context.Context, c *wire.Conn,
	p *wire.FileSystemWatchParams) (*wire.FileSystemWatchResult, error) {
	const op = wire.MethodFileSystemWatch
	if err := checkPath(op, p.Path); err != nil {
		return nil, err
	}
	w, err := f.newWatch(p.Path, p.Recursive)
	if err != nil {
		return nil, fsError(op, p.Path, err)
	}
	if !f.watches(c).add(w) {
		w.close()
		return nil, turnstone.NewError(op, turnstone.KindExhausted, "watches of this connection",
			nil).WithHint("end some with FileSystem.unwatch")
	}
	wire.AfterReply(ctx, func() { c.Go(func() { w.run(c) }) })
	return &wire.FileSystemWatchResult{WatchID: w.id}, nil
}

// Unwatch implements FileSystem.unwatch.
func (f *Files) Unwatch(_ context.Context, c *wire.Conn, p *wire.FileSystemUnwatchParams) error {
	w := f.watches(c).take(p.WatchID)
	if w == nil {
		return turnstone.Errorf(wire.MethodFileSystemUnwatch, turnstone.KindNotFound,
			brief.Clip(p.WatchID, 64),
			"this connection has no such watch").
			WithHint("use the watch ID that FileSystem.watch returned")
	}
	w.close()
	return nil
}

// newWatch starts watching: later events are in the kernel's queue.
func (f *Files) newWatch(name string, recursive bool) (*watch, error) {
	w := &watch{f: f, root: path.Clean(name), recursive: recursive, dirs: make(map[int32]string)}
	fd, err := f.Open(name, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	_ = unix.Close(fd)
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		// A file is watched through its directory, because most programs replace a file to change
		// it.
		w.root, w.only, w.recursive = path.Dir(w.root), path.Base(w.root), false
	}
	in, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w.in = os.NewFile(uintptr(in), "inotify")
	if err := w.add(w.root); err != nil {
		w.close()
		return nil, err
	}
	if w.recursive {
		w.walk(w.root, 0, nil)
	}
	return w, nil
}

// close ends the watch.
func (w *watch) close() { w.once.Do(func() { _ = w.in.Close() }) }

// add watches one directory. It opens the directory first, so that no link leads elsewhere.
func (w *watch) add(dir string) error {
	if len(w.dirs) >= maxWatchedDirs {
		w.full = true
		return unix.ENOSPC
	}
	fd, err := w.f.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	raw, err := w.in.SyscallConn()
	if err != nil {
		return err
	}
	wd, werr := -1, error(nil)
	// An open directory has a path only as a thread's working directory.
	at, err := process.NewThread(
		func() error { return errors.Join(unix.Unshare(unix.CLONE_FS), unix.Fchdir(fd)) })
	if err != nil {
		return err
	}
	defer at.Close()
	err = raw.Control(func(in uintptr) {
		at.Do(func() { wd, werr = unix.InotifyAddWatch(int(in), ".", watchMask) })
	})
	if err = errors.Join(err, werr); err == nil {
		w.dirs[int32(wd)] = dir
	}
	return err
}

// walk watches the directories below a watched directory, and reports everything already there to
// found.
func (w *watch) walk(dir string, depth int, found func(name string)) {
	fd, err := w.f.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	d := os.NewFile(uintptr(fd), dir)
	defer d.Close()
	for !w.full {
		entries, err := d.Readdir(256)
		for _, e := range entries {
			name := path.Join(dir, e.Name())
			if found != nil {
				found(name)
			}
			if !e.IsDir() {
				continue
			}
			if depth == maxDepth {
				w.full = true
			} else if w.add(name) == nil {
				w.walk(name, depth+1, found)
			}
		}
		if err != nil {
			return
		}
	}
}

// run sends changes until the watch or its connection ends.
func (w *watch) run(c *wire.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.in.Read(buf)
		if err != nil || n == 0 {
			return
		}
		e := &changes{w: w}
		if w.full { // reported once
			w.full, e.overflow = false, true
		}
		e.read(buf[:n])
		if len(e.list) == 0 && !e.overflow {
			continue
		}
		for first := true; first || len(e.list) > 0; first = false {
			k := min(len(e.list), maxChanges)
			ev := &wire.FileSystemChangedEvent{WatchID: w.id,
				Changes: append([]wire.FileSystemChange{}, e.list[:k]...), Overflow: e.overflow}
			if c.EmitFileSystemChanged(c.Context(), ev) != nil {
				return
			}
			e.list, e.overflow = e.list[k:], false
		}
	}
}

// changes collects the changes of one read from the kernel's queue.
type changes struct {
	w        *watch
	list     []wire.FileSystemChange
	overflow bool
}

// maxCollected bounds the changes that one read of the queue may cause: a new directory with very
// many files is an overflow.
const maxCollected = 16 * maxChanges

func (e *changes) add(name string, kind wire.FileSystemChangeKind) {
	if strings.HasPrefix(path.Base(name), TempPrefix) {
		return // the agent's own temporary file; its final name is reported
	}
	if n := len(e.list); n > 0 && e.list[n-1].Path == name && e.list[n-1].Kind == kind {
		return
	}
	if len(e.list) >= maxCollected {
		e.overflow = true
		return
	}
	e.list = append(e.list, wire.FileSystemChange{Path: name, Kind: kind})
}

// read parses inotify's records: watch descriptor, mask, cookie, length of the name (4 bytes each),
// name.
func (e *changes) read(b []byte) {
	for len(b) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		size := int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			return
		}
		name, _, _ := bytes.Cut(b[:size], []byte{0})
		e.event(wd, mask, string(name))
		b = b[size:]
	}
}

func (e *changes) event(wd int32, mask uint32, name string) {
	w := e.w
	if mask&unix.IN_Q_OVERFLOW != 0 {
		e.overflow = true
		if w.recursive {
			w.walk(w.root, 0, nil) // directories may have been created without an event
		}
		return
	}
	dir, known := w.dirs[wd]
	if mask&unix.IN_IGNORED != 0 {
		delete(w.dirs, wd)
		return
	}
	if !known {
		return
	}
	full := path.Join(dir, name)
	switch {
	case w.only != "" && name != w.only:
		return
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		if dir == w.root { // the parent directory reports the others
			e.add(dir, wire.FileSystemChangeKindRemoved)
		}
		return
	case name == "" && dir != w.root:
		return // the parent directory reports it
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		e.add(full, wire.FileSystemChangeKindCreated)
		if w.recursive && mask&unix.IN_ISDIR != 0 && w.add(full) == nil {
			w.walk(full, strings.Count(strings.TrimPrefix(full, w.root), "/"), func(found string) {
				e.add(found, wire.FileSystemChangeKindCreated)
			})
		}
	case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		e.add(full, wire.FileSystemChangeKindRemoved)
		if mask&unix.IN_ISDIR != 0 {
			w.forget(full)
		}
	case mask&(unix.IN_MODIFY|unix.IN_CLOSE_WRITE) != 0:
		e.add(full, wire.FileSystemChangeKindModified)
	case mask&unix.IN_ATTRIB != 0:
		e.add(full, wire.FileSystemChangeKindAttributes)
	}
	if w.full {
		w.full, e.overflow = false, true
	}
}

// forget stops watching a directory that no longer exists, and the directories below it.
func (w *watch) forget(dir string) {
	raw, err := w.in.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(in uintptr) {
		for wd, name := range w.dirs {
			if name == dir || strings.HasPrefix(name, dir+"/") {
				_, _ = unix.InotifyRmWatch(int(in), uint32(wd))
				delete(w.dirs, wd)
			}
		}
	})
}
