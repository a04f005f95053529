package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// Files are the files of a sandbox. Relative paths begin in the template's directory. What is read
// comes from the sandbox and is untrusted.
type Files struct{ s *Sandbox }

// Files returns the sandbox's files.
func (s *Sandbox) Files() Files { return Files{s} }

// defaultWorkdir is where relative paths begin if the server does not say it.
const defaultWorkdir = "/workspace"

// at returns an absolute path. A slash at its end stays.
func (f Files) at(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return strings.TrimRight(first(f.s.workdir, defaultWorkdir), "/") + "/" + name
}

// A FileInfo is what the sandbox says of a file.
type FileInfo struct {
	Path, Name string
	Type       string // file, directory, symlink, fifo, socket, block, char
	Size       int64
	Mode       int64 // permission bits
	UID, GID   int64
	Modified   time.Time
	Target     string // of a symlink
}

func infoOf(f wire.FileSystemFileInfo) FileInfo {
	modified, _ := time.Parse(time.RFC3339Nano, f.Modified) // zero if the sandbox says something else
	return FileInfo{Path: f.Path, Name: f.Name, Type: string(f.Type), Size: f.Size, Mode: f.Mode,
		UID: f.UID, GID: f.GID, Modified: modified, Target: f.Target}
}

// Read returns the content of a file. The error is of kind Exhausted if it has more than MaxOutput
// bytes.
func (f Files) Read(ctx context.Context, path string) ([]byte, error) {
	var b limited
	if err := f.s.access.ReadFile(ctx, f.s.id, f.at(path), &b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// limited is memory for MaxOutput bytes.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > MaxOutput {
		return 0, turnstone.Errorf("file.read", turnstone.KindExhausted, "the file",
			"has more than %d bytes", MaxOutput).WithHint("copy it with Files.ReadTo or Files.Download")
	}
	return l.Buffer.Write(p)
}

// ReadTo copies the content of a file to w.
func (f Files) ReadTo(ctx context.Context, path string, w io.Writer) error {
	return f.s.access.ReadFile(ctx, f.s.id, f.at(path), w)
}

// Write writes a file: completely, or not at all.
func (f Files) Write(ctx context.Context, path string, data []byte) error {
	return f.WriteFrom(ctx, path, bytes.NewReader(data))
}

// WriteFrom writes a file from r, as Write does. Reading may outlive the call by one Read.
func (f Files) WriteFrom(ctx context.Context, path string, r io.Reader) error {
	return f.s.access.WriteFile(ctx, f.s.id, f.at(path), r)
}

// Stat describes a file, and follows symbolic links.
func (f Files) Stat(ctx context.Context, path string) (info FileInfo, err error) {
	err = f.s.access.Use(ctx, f.s.id, func(c *wire.Client) error {
		r, err := c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: f.at(path)})
		if err == nil {
			info = infoOf(r.File)
		}
		return err
	})
	return info, err
}

// maxEntries bounds a list, which comes from the sandbox.
const maxEntries = 1_000_000

// List lists a folder, sorted by name.
func (f Files) List(ctx context.Context, path string) (all []FileInfo, err error) {
	err = f.s.access.Use(ctx, f.s.id, func(c *wire.Client) error {
		all = nil
		for after := ""; len(all) < maxEntries; {
			r, err := c.FileSystemList(ctx, &wire.FileSystemListParams{Path: f.at(path), After: after})
			if err != nil {
				return err
			}
			for _, e := range r.Entries {
				all = append(all, infoOf(e))
			}
			if !r.More || len(r.Entries) == 0 {
				return nil
			}
			after = r.Entries[len(r.Entries)-1].Name
		}
		return turnstone.Errorf("file.list", turnstone.KindExhausted, path, "has more than %d entries",
			maxEntries)
	})
	return all, err
}

// once runs a command that changes files. It is not repeated.
func (f Files) once(ctx context.Context, do func(*wire.Client) error) error {
	ran := false
	return f.s.access.Use(ctx, f.s.id, func(c *wire.Client) error {
		if ran {
			return turnstone.Errorf("file.change", turnstone.KindDead, "the connection to the sandbox",
				"was lost: whether the files were changed is not known")
		}
		if c.Context().Err() == nil { // else nothing is sent
			ran = true
		}
		return do(c)
	})
}

// Mkdir makes a folder and those above it.
func (f Files) Mkdir(ctx context.Context, path string) error {
	return f.once(ctx, func(c *wire.Client) error {
		return c.FileSystemMkdir(ctx, &wire.FileSystemMkdirParams{Path: f.at(path), Parents: true})
	})
}

// Move renames a file or a folder, and replaces a file.
func (f Files) Move(ctx context.Context, from, to string) error {
	return f.once(ctx, func(c *wire.Client) error {
		return c.FileSystemMove(ctx, &wire.FileSystemMoveParams{From: f.at(from), To: f.at(to), Overwrite: true})
	})
}

// Remove removes a file, or a folder with all that is in it.
func (f Files) Remove(ctx context.Context, path string) error {
	return f.once(ctx, func(c *wire.Client) error {
		return c.FileSystemRemove(ctx, &wire.FileSystemRemoveParams{Path: f.at(path), Recursive: true})
	})
}

// Upload copies a file or folder of this machine into the sandbox: into dest if that is a folder there or
// ends in a slash, otherwise under dest's name.
func (f Files) Upload(ctx context.Context, src, dest string) error {
	return f.s.access.Upload(ctx, f.s.id, src, f.at(dest))
}

// Download copies a file or folder of the sandbox to this machine, by the same rules. Nothing is
// written outside of dest. skipped is called for files that are left out; it may be nil.
func (f Files) Download(ctx context.Context, path, dest string, skipped func(string)) error {
	if skipped == nil {
		skipped = func(string) {}
	}
	return f.s.access.Download(ctx, f.s.id, f.at(path), dest, skipped)
}

// A Change is a change of a file.
type Change struct {
	Path string
	Kind string // created, modified, removed, attributes; overflow: look at all files again
}

// A Watcher tells of changes of files.
type Watcher struct {
	// C has the changes in order. It is closed when the watcher has ended.
	C <-chan Change

	conn     *wire.Conn
	events   chan Change // that wait for pass
	overflow atomic.Bool // some did not fit
	changes  chan Change
	stop     chan struct{}
	once     sync.Once
	wg       sync.WaitGroup
}

// maxEvents bounds the changes that wait for their reader. More of them are an overflow.
const maxEvents = 1024

// Watch watches a file or a folder, with all below it if recursive is set. Changes after its return are
// told. Close the watcher.
func (f Files) Watch(ctx context.Context, path string, recursive bool) (*Watcher, error) {
	stream, err := f.s.access.Open(ctx, f.s.id)
	if err != nil {
		return nil, err
	}
	w := &Watcher{changes: make(chan Change), stop: make(chan struct{}),
		events: make(chan Change, maxEvents)}
	w.C = w.changes
	w.conn = wire.NewConn(stream, wire.Options{OnEvent: w.told})
	if _, err := w.conn.FileSystemWatch(ctx, &wire.FileSystemWatchParams{Path: f.at(path),
		Recursive: recursive}); err != nil {
		_ = w.conn.Close()
		w.conn.Wait()
		return nil, err
	}
	w.wg.Go(w.pass)
	return w, nil
}

// told keeps the changes of an event for pass. It must not block.
func (w *Watcher) told(e wire.Event) {
	var c wire.FileSystemChangedEvent
	if e.Method != wire.EventFileSystemChanged || json.Unmarshal(e.Params, &c) != nil {
		return
	}
	for _, one := range c.Changes {
		select {
		case w.events <- Change{one.Path, string(one.Kind)}:
		default:
			c.Overflow = true
		}
	}
	if c.Overflow {
		w.overflow.Store(true)
	}
}

// pass gives changes to the reader.
func (w *Watcher) pass() {
	defer close(w.changes)
	for {
		var c Change
		select {
		case c = <-w.events:
		case <-w.stop:
			return
		case <-w.conn.Done():
			return
		}
		all := []Change{c}
		if w.overflow.Swap(false) {
			all = append(all, Change{Kind: "overflow"})
		}
		for _, one := range all {
			select {
			case w.changes <- one:
			case <-w.stop:
				return
			}
		}
	}
}

// Close ends the watcher. It may be called again.
func (w *Watcher) Close() error {
	w.once.Do(func() {
		close(w.stop)
		_ = w.conn.Close()
		w.conn.Wait()
		w.wg.Wait()
	})
	return nil
}
