package service

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"turnstone.dev/turnstone/shim/pod"
)

// files are the named pipes that containerd has made for a process.
type files struct {
	in *os.File
	// hold is the shim's own writing end of in: the input ends when containerd says so, after what
	// was written before, and not with a containerd that restarts.
	hold     *os.File
	out, err *os.File
	once     sync.Once
}

// openFiles opens the pipes; an empty path is none, and a terminal has no standard error, though some
// clients name one. Those of outputs are open for reading too, so that the process survives a
// containerd that restarts.
func openFiles(stdin, stdout, stderr string, terminal bool) (_ *files, err error) {
	f := new(files)
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if stdin != "" {
		if f.in, err = openPipe(stdin, os.O_RDONLY); err == nil {
			f.hold, err = openPipe(stdin, os.O_WRONLY)
		}
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
	}
	if f.out, err = openOut(stdout); err != nil {
		return nil, fmt.Errorf("standard output: %w", err)
	}
	if terminal {
		return f, nil
	}
	if f.err, err = openOut(stderr); err != nil {
		return nil, fmt.Errorf("standard error: %w", err)
	}
	return f, nil
}

func openOut(path string) (*os.File, error) {
	switch scheme, name, isURI := strings.Cut(path, "://"); {
	case path == "":
		return nil, nil
	case !isURI:
		return openPipe(path, os.O_RDWR)
	case scheme == "file":
		return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	default:
		return nil, fmt.Errorf("a logger of the kind %.40q: %w", scheme, errdefs.ErrNotImplemented)
	}
}

func openPipe(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		_ = f.Close()
		return nil, errors.Join(err, fmt.Errorf("%s is no named pipe", path))
	}
	return f, nil
}

func (f *files) io() pod.IO {
	x := pod.IO{Deadline: f.deadline}
	if f.in != nil {
		x.In = f.in
	}
	if f.out != nil {
		x.Out = f.out
	}
	if f.err != nil {
		x.Err = f.err
	}
	return x
}

func (f *files) deadline(t time.Time) {
	for _, o := range []*os.File{f.out, f.err} {
		if o != nil {
			_ = o.SetWriteDeadline(t)
		}
	}
}

// endIn ends the input after what is in its pipe.
func (f *files) endIn() {
	if f.hold != nil {
		_ = f.hold.Close()
	}
}

func (f *files) close() {
	f.once.Do(func() {
		for _, o := range []*os.File{f.hold, f.in, f.out, f.err} {
			if o != nil {
				_ = o.Close()
			}
		}
	})
}
