package tree

import (
	"context"
	"fmt"

	"turnstone.dev/turnstone"
)

// PutDirectory puts d's object and returns its name and the FS hash of d's entries: the values of
// Entry.Tree and Entry.Hash of d's own entry. An invalid d is an error of kind Invalid.
func PutDirectory(ctx context.Context, p Putter, d Directory) (tree,
	hash turnstone.Digest, err error) {
	if err := d.Check(); err != nil {
		return "", "", err
	}
	if tree, err = p.Put(ctx, d.Encode()); err != nil {
		return "", "", err
	}
	return tree, d.fsHash(), nil
}

// GetDirectory returns the directory whose object is d. A malformed object is an error of kind
// Integrity. The FS hashes in it are not verified (see Verify).
func GetDirectory(ctx context.Context, g Getter, d turnstone.Digest) (Directory, error) {
	b, err := g.Get(ctx, d)
	if err != nil {
		return nil, err
	}
	dir, err := DecodeDirectory(b)
	if err != nil {
		return nil, named(d, err)
	}
	return dir, nil
}

// PutRoot puts r's object, and those of its links. An invalid r is an error of kind Invalid.
func PutRoot(ctx context.Context, p Putter, r *Root) (turnstone.TreeRef, error) {
	if err := r.Check(); err != nil {
		return turnstone.TreeRef{}, err
	}
	root, links := r.Encode()
	for _, b := range links {
		if _, err := p.Put(ctx, b); err != nil {
			return turnstone.TreeRef{}, err
		}
	}
	d, err := p.Put(ctx, root)
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	return turnstone.TreeRef{Root: d, Hash: r.fsHash()}, nil
}

// GetRoot returns the root that ref names. If ref's FS hash is not empty and differs from the
// root's, the error is of kind Integrity.
func GetRoot(ctx context.Context, g Getter, ref turnstone.TreeRef) (*Root, error) {
	b, err := g.Get(ctx, ref.Root)
	if err != nil {
		return nil, err
	}
	r, err := DecodeRoot(b, func(d turnstone.Digest) ([]byte, error) { return g.Get(ctx, d) })
	if err != nil {
		return nil, named(ref.Root, err)
	}
	if have := r.fsHash(); ref.Hash != "" && have != ref.Hash {
		return nil, damaged("tree.get", string(ref.Root),
			fmt.Errorf("has the FS hash %s, not %s", have, ref.Hash))
	}
	return r, nil
}

// getEntry returns the top directory of the tree that ref names, without its links.
func getEntry(ctx context.Context, g Getter, ref turnstone.TreeRef) (*Entry, error) {
	b, err := g.Get(ctx, ref.Root)
	if err != nil {
		return nil, err
	}
	h, err := decodeHead(b)
	if err != nil {
		return nil, named(ref.Root, damaged("tree.decode", "a root's object", err))
	}
	return &h.entry, nil
}

// named adds the object's name to err if err does not name an object.
func named(d turnstone.Digest, err error) error {
	if turnstone.KindOf(err) != turnstone.KindIntegrity {
		return err
	}
	return turnstone.NewError("tree.get", turnstone.KindIntegrity, string(d), err)
}
