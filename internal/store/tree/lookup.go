package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"turnstone.dev/turnstone"
)

// maxSymlinks bounds the symlinks that Resolve follows (Linux's MAXSYMLINKS).
const maxSymlinks = 40

// Lookup returns the entry at a path of the tree that ref names. It does not follow symlinks; "."
// and ".." are processed lexically. A missing path is an error of kind NotFound that also matches
// fs.ErrNotExist.
func Lookup(ctx context.Context, g Getter, ref turnstone.TreeRef, name string) (*Entry, error) {
	e, err := getEntry(ctx, g, ref)
	if err != nil {
		return nil, err
	}
	clean := path.Clean("/" + name)
	for rest := clean[1:]; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		if e, err = child(ctx, g, e, part); err != nil {
			return nil, missing(clean, err)
		}
	}
	return e, nil
}

// Resolve is Lookup that follows symlinks, including the last component, like a process whose root
// is the tree's. It also returns the resolved path: absolute, without symlinks. More than 40
// symlinks are an error of kind Invalid.
func Resolve(ctx context.Context, g Getter, ref turnstone.TreeRef, name string) (string, *Entry,
	error) {
	top, err := getEntry(ctx, g, ref)
	if err != nil {
		return "", nil, err
	}
	type place struct {
		name  string
		entry *Entry
	}
	at := []place{{"", top}}
	links := 0
	for rest := name; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		here := at[len(at)-1].entry
		switch part {
		case "":
			continue
		case ".", "..":
			if here.Type != Dir {
				return "", nil, missing(name, syscall.ENOTDIR)
			}
		}
		switch part {
		case ".":
			continue
		case "..":
			if len(at) > 1 {
				at = at[:len(at)-1]
			}
			continue
		}
		e, err := child(ctx, g, here, part)
		if err != nil {
			return "", nil, missing(name, err)
		}
		if e.Type != Symlink {
			at = append(at, place{part, e})
			continue
		}
		if links++; links > maxSymlinks || len(rest) > 1<<20 {
			return "", nil, turnstone.NewError("tree.resolve", turnstone.KindInvalid, name,
				syscall.ELOOP).WithHint("name the file itself, not a symlink")
		}
		if strings.HasPrefix(e.Target, "/") {
			at = at[:1]
		}
		rest = e.Target + "/" + rest
	}
	var real strings.Builder
	for _, p := range at[1:] {
		real.WriteString("/" + p.name)
	}
	if real.Len() == 0 {
		return "/", top, nil
	}
	return real.String(), at[len(at)-1].entry, nil
}

// child returns dir's entry called name; its error is fs.ErrNotExist or syscall.ENOTDIR if there is
// none.
func child(ctx context.Context, g Getter, dir *Entry, name string) (*Entry, error) {
	if dir.Type != Dir {
		return nil, syscall.ENOTDIR
	}
	b, err := g.Get(ctx, dir.Tree)
	if err != nil {
		return nil, err
	}
	raw, err := openDir(b)
	for err == nil {
		var have, body []byte
		var ok bool
		if have, body, ok, err = raw.next(); err != nil {
			break
		}
		if !ok || string(have) > name {
			return nil, fs.ErrNotExist
		}
		if string(have) == name {
			e := &Entry{Name: name}
			if err = decodeBody(body, e); err == nil {
				return e, nil
			}
		}
	}
	return nil, damaged("tree.lookup", string(dir.Tree), err)
}

// missing converts the error of child to a user's error; other errors are unchanged.
func missing(name string, err error) error {
	if errors.Is(err, syscall.ENOTDIR) {
		err = fmt.Errorf("%w (%w)", fs.ErrNotExist, err)
	} else if !errors.Is(err, fs.ErrNotExist) || turnstone.KindOf(err) != turnstone.KindInternal {
		return err
	}
	return turnstone.NewError("tree.lookup", turnstone.KindNotFound, name, err)
}
