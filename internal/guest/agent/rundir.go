package agent

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/files"
	"turnstone.dev/turnstone/wire"
)

const (
	keepFiles  = 16      // scripts of ended steps that stay in the run directory
	keepScript = 1 << 20 // total bytes of these scripts
)

// A runDir is the directory for scripts and captures, opened for one step. Earlier processes may
// have put anything there, and may still do so: names are looked up one by one, without following
// links and without waiting for a pipe.
type runDir struct{ files.Place }

// openRun opens the directory inside the sandbox's root, even if a step has moved it.
func (s *shell) openRun() (runDir, error) {
	fd, err := s.a.files.Open(s.a.opt.RunDir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return runDir{}, runDirError(err)
	}
	return runDir{files.Place{Dir: fd}}, nil
}

// needRun is openRun, except that it creates the directory again if a step has removed it, or
// covered it with a mount.
func (s *shell) needRun() (runDir, error) {
	if dir, err := s.openRun(); err == nil {
		return dir, nil
	}
	root, err := s.a.files.RootFD()
	if err != nil {
		return runDir{}, runDirError(err)
	}
	at, err := unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return runDir{}, runDirError(err)
	}
	d := runDir{files.Place{Dir: at}}
	names := strings.Split(strings.Trim(filepath.Clean(s.a.opt.RunDir), "/"), "/")
	for i, name := range names {
		next, err := d.enter(name, i == len(names)-1)
		d.Close()
		if err != nil {
			return runDir{}, err
		}
		d = next
	}
	return d, nil
}

// enter opens a subdirectory, which it creates if necessary. It follows no link: a step may have
// placed one there so that the agent creates a directory at its target. The last name belongs to
// the agent: any other file with that name is removed.
func (d runDir) enter(name string, last bool) (runDir, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(d.Dir, name, flags, 0)
	for tries := 0; err != nil && tries < 10; tries++ {
		if last {
			if err := d.remove(name); err != nil {
				return runDir{}, err
			}
		}
		if err := unix.Mkdirat(d.Dir, name, 0o755); err != nil && err != unix.EEXIST {
			return runDir{}, runDirError(err)
		}
		fd, err = unix.Openat(d.Dir, name, flags, 0)
	}
	if err != nil {
		return runDir{}, runDirError(err)
	}
	return runDir{files.Place{Dir: fd}}, nil
}

// has reports whether a file of that name exists.
func (d runDir) has(name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(d.Dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// write creates a new file, replacing any file with its name.
func (d runDir) write(name string, data []byte) error {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(d.Dir, name, flags, 0o644)
	for tries := 0; err == unix.EEXIST && tries < 10; tries++ {
		if err := d.remove(name); err != nil {
			return err
		}
		fd, err = unix.Openat(d.Dir, name, flags, 0o644)
	}
	if err != nil {
		return runDirError(err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return runDirError(err)
	}
	return nil
}

// writeForAll creates an empty file that every user may write. A step's content in it affects only
// its own session, and the steps of a sandbox have one user.
func (d runDir) writeForAll(name string) error {
	fd, err := unix.Openat(d.Dir, name,
		unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return runDirError(err)
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, 0o666)
}

// remove removes a file, if it exists, or an empty directory.
func (d runDir) remove(name string) error {
	err := unix.Unlinkat(d.Dir, name, 0)
	if err == unix.EISDIR {
		err = unix.Unlinkat(d.Dir, name, unix.AT_REMOVEDIR)
	}
	if err != nil && err != unix.ENOENT {
		return runDirError(err)
	}
	return nil
}

// A runFile is a script in the run directory.
type runFile struct {
	name string
	size int
}

// tidy removes the files that an ended step no longer needs. Its script stays for some time,
// because a background process may start it again; the oldest scripts are removed first. The caller
// holds the session.
func (s *shell) tidy(st *step) {
	var gone []string
	if st.prelude != "" {
		gone = append(gone, st.prelude)
	}
	s.scripts = append(s.scripts, st.file)
	total := 0
	for i := len(s.scripts) - 1; i >= 0; i-- {
		if total += s.scripts[i].size; total <= keepScript && len(s.scripts)-i <= keepFiles {
			continue
		}
		for _, f := range s.scripts[:i+1] {
			gone = append(gone, f.name)
		}
		s.scripts = append([]runFile(nil), s.scripts[i+1:]...)
		break
	}
	if len(gone) == 0 {
		return
	}
	dir, err := s.openRun()
	if err != nil {
		return // it was removed with its contents
	}
	defer dir.Close()
	for _, name := range gone {
		_ = dir.remove(name)
	}
}

// A patient reader aborts its stream if no data arrives for too long.
type patient struct {
	r     *wire.Receiver
	timer *time.Timer
	wait  time.Duration
}

func (p *patient) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if err == nil {
		p.timer.Reset(p.wait)
	}
	return n, err
}

// readStream reads a step's script. The session waits for it.
func (s *shell) readStream(r *wire.Receiver) ([]byte, error) {
	var late atomic.Bool
	timer := time.AfterFunc(s.patience, func() { late.Store(true); _ = r.Close() })
	defer timer.Stop()
	b, err := io.ReadAll(io.LimitReader(&patient{r, timer, s.patience}, maxScript+1))
	if err != nil && late.Load() {
		err = turnstone.Errorf(wire.MethodShellExecute, turnstone.KindTimeout, "script",
			"no more data arrived").
			WithHint("send the script without pauses: other steps wait for it")
	}
	return b, err
}
