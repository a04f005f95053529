package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"turnstone.dev/turnstone"
)

// Walk calls fn for dir and everything below it, sorted bytewise by path: as strings, so that
// "/a-b" comes after "/a" and before "/a/c". It does not follow symlinks. If fn returns fs.SkipDir,
// the entries below are skipped; fs.SkipAll ends the walk; any other error ends it and is returned.
// fn may keep e.
func Walk(ctx context.Context, g Getter, ref turnstone.TreeRef, dir string,
	fn func(path string, e *Entry) error) error {
	e, err := Lookup(ctx, g, ref, dir)
	if err != nil {
		return err
	}
	w := &walker{ctx: ctx, g: g, fn: fn}
	dir = path.Clean("/" + dir)
	if err = fn(dir, e); err == nil && e.Type == Dir {
		if dir == "/" {
			dir = ""
		}
		err = w.walk(dir, e.Tree, 0)
	}
	if errors.Is(err, fs.SkipAll) || errors.Is(err, fs.SkipDir) {
		return nil
	}
	return err
}

type walker struct {
	ctx context.Context
	g   Getter
	fn  func(string, *Entry) error
}

// walk visits the entries of the directory at path, which ends without a slash.
func (w *walker) walk(path string, dir turnstone.Digest, depth int) error {
	raw, err := getRaw(w.ctx, w.g, dir, depth)
	if err != nil {
		return err
	}
	var due pending[turnstone.Digest]
	visit := func(name string, d turnstone.Digest) error {
		return w.walk(path+"/"+name, d, depth+1)
	}
	for {
		name, body, ok, err := raw.next()
		if err != nil {
			return damaged("tree.walk", string(dir), err)
		}
		if err := due.before(name, ok, visit); err != nil || !ok {
			return err
		}
		e := &Entry{Name: string(name)}
		if err := decodeBody(body, e); err != nil {
			return damaged("tree.walk", string(dir), fmt.Errorf("%q: %w", name, err))
		}
		err = w.fn(path+"/"+e.Name, e)
		switch {
		case errors.Is(err, fs.SkipDir):
		case err != nil:
			return err
		case e.Type == Dir:
			due.push(e.Name, e.Tree)
		}
	}
}

// getRaw returns the directory at dir for iteration.
func getRaw(ctx context.Context, g Getter, dir turnstone.Digest, depth int) (rawDir, error) {
	if err := ctx.Err(); err != nil {
		return rawDir{}, turnstone.NewError("tree.walk", turnstone.KindCanceled, "", err)
	}
	if depth > MaxDepth {
		return rawDir{}, damaged("tree.walk", string(dir),
			fmt.Errorf("is more than %d directories deep", MaxDepth))
	}
	b, err := g.Get(ctx, dir)
	if err != nil {
		return rawDir{}, err
	}
	raw, err := openDir(b)
	if err != nil {
		return rawDir{}, damaged("tree.walk", string(dir), err)
	}
	return raw, nil
}

// pending holds the directories that are not visited yet: the paths below "a" begin with "a/", and
// "a-b" precedes them. Each name is a prefix of the next name, so the last is visited first.
type pending[T any] struct {
	items []pendingItem[T]
}

type pendingItem[T any] struct {
	name string
	what T
}

func (p *pending[T]) push(name string, what T) {
	p.items = append(p.items, pendingItem[T]{name, what})
}

// before calls visit for the directories whose content precedes name; if more is false, for all
// remaining directories.
func (p *pending[T]) before(name []byte, more bool, visit func(string, T) error) error {
	for len(p.items) > 0 {
		it := p.items[len(p.items)-1]
		if rest, ok := bytes.CutPrefix(name, []byte(it.name)); more && ok &&
			len(rest) > 0 && rest[0] < '/' {
			return nil
		}
		p.items = p.items[:len(p.items)-1]
		if err := visit(it.name, it.what); err != nil {
			return err
		}
	}
	return nil
}
