// Package hostpath hides the paths of this host in texts that others read: errors that a node
// answers, and receipts, which are handed on. A path shows a host's users, disks and layout.
package hostpath

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Home stands for the state directory in texts.
const Home = "$TURN_HOME"

// A Hider replaces the path of a state directory by Home, and shortens other paths that an error
// of this host names to their last element. A nil Hider changes nothing. It is safe for concurrent
// use.
type Hider struct {
	homes    []string // of the state directory, the longest first
	programs string   // the folder of the running program; empty: one that every host has
}

// New returns a Hider for a state directory, and for those that contain it; empty names none.
func New(homes ...string) *Hider {
	h := &Hider{}
	add := func(dir string) {
		if filepath.IsAbs(dir) && len(dir) > 1 && !slices.Contains(h.homes, dir) {
			h.homes = append(h.homes, dir)
		}
	}
	for _, home := range homes {
		if home == "" {
			continue
		}
		add(filepath.Clean(home))
		if real, err := filepath.EvalSymlinks(home); err == nil {
			add(real)
		}
	}
	slices.SortFunc(h.homes, func(a, b string) int { return len(b) - len(a) })
	if exe, err := os.Executable(); err == nil && !usual(filepath.Dir(exe)) {
		h.programs = filepath.Dir(exe)
	}
	return h
}

// usual reports whether programs are there on most hosts, and in most sandboxes.
func usual(dir string) bool {
	return dir == "/" || slices.Contains([]string{"/bin", "/sbin", "/usr/bin", "/usr/sbin",
		"/usr/local/bin", "/usr/local/sbin"}, dir)
}

// Text returns s without the paths of the state directory and of the running program's folder.
func (h *Hider) Text(s string) string {
	if h == nil {
		return s
	}
	for _, dir := range h.homes {
		s = replace(s, dir, Home)
	}
	if h.programs != "" {
		s = replace(s, h.programs+"/", "")
	}
	return s
}

// replace replaces a path in s where a path begins, and where its last element ends.
func replace(s, path, by string) string {
	var out strings.Builder
	begin := 0 // of what is not in out yet
	for at := 0; ; {
		i := strings.Index(s[at:], path)
		if i < 0 {
			break
		}
		i += at
		end := i + len(path)
		if at = end; i > 0 && inPath(s[i-1]) ||
			!strings.HasSuffix(path, "/") && end < len(s) && inName(s[end:]) {
			continue
		}
		out.WriteString(s[begin:i])
		out.WriteString(by)
		begin = end
	}
	if begin == 0 {
		return s
	}
	return out.String() + s[begin:]
}

// inPath reports whether a path that follows c is a part of a longer one.
func inPath(c byte) bool { return c == '/' || isWord(c) }

// inName reports whether a name goes on with s: a full stop at its end is of the sentence.
func inName(s string) bool {
	return isWord(s[0]) || s[0] == '.' && len(s) > 1 && isWord(s[1])
}

func isWord(c byte) bool {
	return c == '_' || c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' ||
		c >= 'A' && c <= 'Z' || c >= 0x80
}

// Error returns err with texts that have no paths of this host. In its chain are copies of each
// Wrapper, so its kind and its details are as before, and errors.Is holds as before. Original
// returns err.
func (h *Hider) Error(err error) error {
	if h == nil || err == nil {
		return err
	}
	r := rewriting{Hider: h, paths: pathsOf(err)}
	out := r.within(err)
	if !r.changed {
		return err
	}
	return &hidden{out.Error(), []error{out}, err}
}

// Original returns the error that Error got, for a log of this host.
func Original(err error) error {
	if h, ok := err.(*hidden); ok { // not one of its chain
		return h.was
	}
	return err
}

// rewriting is the work on one error.
type rewriting struct {
	*Hider
	paths   []string // that the error's parts name
	changed bool
}

// text returns s without paths.
func (r *rewriting) text(s string) string {
	out := r.Text(s)
	for _, p := range r.paths {
		p = r.Text(p)
		out = replace(out, p, short(p))
	}
	r.changed = r.changed || out != s
	return out
}

// A Wrapper is an error that is more than its text. With returns a copy of it that has the texts
// and the cause changed.
type Wrapper interface {
	error
	With(text func(string) string, cause func(error) error) error
}

func (r *rewriting) within(err error) error {
	if err == nil {
		return nil
	}
	if w, ok := err.(Wrapper); ok { // each error of the chain is looked at on its own
		return w.With(r.text, r.within)
	}
	var causes []error
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		causes = []error{e.Unwrap()}
	case interface{ Unwrap() []error }:
		causes = slices.Clone(e.Unwrap())
	}
	for i := range causes {
		causes[i] = r.within(causes[i])
	}
	said := r.text(err.Error())
	if said == err.Error() && len(causes) == 0 {
		return err
	}
	return &hidden{said, causes, err}
}

// short returns the last element of an absolute path; what is below Home stays.
func short(path string) string {
	if !filepath.IsAbs(path) || path == "/" {
		return path
	}
	return filepath.Base(path)
}

// pathsOf returns the absolute paths of this host that the errors in err name, the longest first.
func pathsOf(err error) (all []string) {
	add := func(paths ...string) {
		for _, p := range paths {
			if filepath.IsAbs(p) && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) { // each error of the tree is looked at on its own
		case *fs.PathError:
			add(e.Path, strings.TrimPrefix(e.Op, "fork/exec "))
		case *os.LinkError:
			add(e.Old, e.New)
		case *exec.Error:
			add(e.Name)
		}
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				walk(one)
			}
		}
	}
	walk(err)
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}

// A hidden error says what another one says, without paths.
type hidden struct {
	text   string
	causes []error
	was    error
}

func (e *hidden) Error() string   { return e.text }
func (e *hidden) Unwrap() []error { return e.causes }

// Is implements errors.Is for what the error itself was.
func (e *hidden) Is(target error) bool { return errors.Is(e.was, target) }
