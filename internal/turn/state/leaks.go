package state

import (
	"io"
	"slices"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A leakWatch searches a state for secrets.
type leakWatch struct {
	secrets *secret.Set
	mu      sync.Mutex
	scans   map[string]*secret.Scanner
}

// newLeakWatch returns a leakWatch that finds secrets in all forms in which they are masked.
func newLeakWatch(secrets *secret.Set) *leakWatch { return &leakWatch{secrets: secrets.Written()} }

func (w *leakWatch) inspect(path string) io.Writer {
	if w.secrets == nil {
		return nil
	}
	c := w.secrets.Scanner()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.scans == nil {
		w.scans = map[string]*secret.Scanner{}
	}
	w.scans[path] = c
	return c
}

func (w *leakWatch) check(path string, a *tree.Attr) error {
	if w.secrets == nil {
		return nil
	}
	texts := []string{path, a.Target}
	for _, x := range a.Xattrs {
		texts = append(texts, x.Name, string(x.Value))
	}
	for _, text := range texts {
		if name := w.secrets.In(text); name != "" {
			return Leaked(w.secrets.Mask(path), name)
		}
	}
	return nil
}

// found returns an error for the first file, by path, that contains a secret's value.
func (w *leakWatch) found() error {
	var paths []string
	for path, c := range w.scans {
		if c.Found() != "" {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	slices.Sort(paths)
	return Leaked(paths[0], w.scans[paths[0]].Found())
}

// Leaked returns the error about the secret called name in a turn's data.
func Leaked(where, name string) error {
	return turnstone.Errorf("executor.commit", turnstone.KindInvalid, where,
		"%w (%s); the turn's changes are not kept", secret.ErrFound, name).
		WithHint("let the steps read the secret from their environment, and remove the file " +
			"before the turn ends")
}
