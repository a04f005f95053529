package main

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// digest returns the digest of a part's command and of the files that its result depends on, or "" if it
// names none.
func (p *part) digest(root string) (string, error) {
	if len(p.inputs) == 0 {
		return "", nil
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q\n", p.argv, p.env, p.dir)
	for _, path := range p.inputs {
		if err := addFiles(h, root, path); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// addFiles adds the names, modes and contents of the files at and below path, which may be missing.
func addFiles(h hash.Hash, root, path string) error {
	return filepath.WalkDir(filepath.Join(root, path), func(name string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".cache") {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%q %v %d\n", rel, info.Mode(), info.Size())
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		_, err = io.Copy(h, f)
		return err
	})
}

// passed reports whether the part called name has passed with this digest.
func (r *runner) passed(name, digest string) bool {
	old, err := os.ReadFile(filepath.Join(r.stamps, name))
	return digest != "" && err == nil && string(old) == digest
}

// keep notes that the part called name has passed with this digest.
func (r *runner) keep(name, digest string) error {
	if digest == "" {
		return nil
	}
	if err := os.MkdirAll(r.stamps, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.stamps, name), []byte(digest), 0o600)
}
