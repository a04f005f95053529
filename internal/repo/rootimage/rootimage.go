// Package rootimage finds the root images of kept machines: images of built templates, and images
// from imported sessions.
package rootimage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
)

// rootsAge is the time after which an unused image of an imported session is deleted.
const rootsAge = 30 * 24 * time.Hour

// Kept returns the template of the kept machine of rec: the template with that name if it has the
// same image, otherwise a template that has only the image.
func Kept(ctx context.Context, r *repo.Repo, templates *template.Store, rec *turnstone.TurnRecord,
	progress func(string)) (*turnstone.Template, error) {
	want := rec.VM.Image
	fits := func(t *turnstone.Template) bool {
		return want == nil && t.Digest == rec.Template || want != nil && t.RootDigest == want.Digest
	}
	if t, err := r.BuiltTemplate(ctx, rec.Image); err == nil && fits(t) {
		return t, nil
	}
	if want != nil {
		// the record may be imported
		if _, err := turnstone.ParseDigest(string(want.Digest)); err != nil {
			return nil, err
		}
		if err := extract(ctx, r, templates, *want); err == nil {
			return Template(ctx, r, templates, rec.Image, want.Digest)
		} else if turnstone.KindOf(err) != turnstone.KindNotFound {
			return nil, err
		}
	}
	t, err := templates.Ensure(ctx, rec.Image, progress)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		err = turnstone.Errorf("executor.resume", turnstone.KindNotFound,
			fmt.Sprintf("turn %d", rec.Number), "the template of its machine is missing: %w", err).
			WithHint("import the session with turn session import --build all, " +
				"or export it with turn session export --full")
	}
	if err != nil || fits(t) {
		return t, err
	}
	e := turnstone.Errorf("executor.resume", turnstone.KindUnavailable,
		fmt.Sprintf("turn %d", rec.Number),
		"template %s is not the template of its machine (%s, now %s)", rec.Image,
		rec.Template.Short(), t.Digest.Short()).
		WithHint("start a turn from its files")
	if want != nil {
		e.Err = fmt.Errorf("the image of template %s is not the image of its machine (%s, now %s)",
			rec.Image, want.Digest.Short(), t.RootDigest.Short())
		e.Hint = "export the session with turn session export --full on a host with that image, " +
			"or start a turn from the machine's files"
	}
	return nil, e
}

// Template returns a template called name that has the image root. The name may belong to another
// template today.
func Template(ctx context.Context, r *repo.Repo, templates *template.Store, name string,
	root turnstone.Digest) (*turnstone.Template, error) {
	if t, err := r.BuiltTemplate(ctx, name); err == nil && t.RootDigest == root {
		return t, nil
	}
	path, err := templates.Image(ctx, root)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		path, err = extracted(ctx, r.Dir, root)
	}
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	t := &turnstone.Template{Name: name, Root: path, RootDigest: root, Size: st.Size()}
	if spec, err := templates.Spec(name); err == nil { // for commands of turn sandbox exec
		t.Env, t.Workdir, t.User = spec.Env, spec.Workdir, spec.User
	}
	return t, nil
}

// pathOf returns where extract writes an image.
func pathOf(dir *statedir.Dir, root turnstone.Digest) string {
	return dir.Path("cache", "roots", root.Hex()+".erofs")
}

// extracted returns the path of an image that extract has written, if the image is undamaged.
func extracted(ctx context.Context, dir *statedir.Dir, root turnstone.Digest) (string, error) {
	path := pathOf(dir, root)
	var st filestamp.Stamp
	b, err := os.ReadFile(path + ".json")
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	if err == nil {
		_, err = st.Check(ctx, path)
	}
	if err == nil && st.Digest != root {
		err = errors.New("the digest differs")
	}
	if err != nil {
		return "", turnstone.Errorf("executor.resume", turnstone.KindNotFound,
			"image "+root.Short(), "is missing: %w", err).
			WithHint("build its template, or import the session from turn session export --full")
	}
	now := time.Now()
	_ = os.Chtimes(path+".json", now, now)
	return path, nil
}

// extract writes the image c to a file, unless a template or an earlier file has the image. If the
// store lacks the image, the error is of kind KindNotFound. Only sandboxes open the file, because
// the image may come from an imported session.
func extract(ctx context.Context, r *repo.Repo, templates *template.Store,
	c turnstone.Content) error {
	if _, err := templates.Image(ctx, c.Digest); err == nil {
		return nil
	}
	if _, err := extracted(ctx, r.Dir, c.Digest); err == nil {
		return nil
	}
	cs, err := r.Open(ctx)
	if err != nil {
		return err
	}
	if has, err := cs.Store.Has(ctx, c.Digest); err != nil || !has {
		return errors.Join(err, turnstone.Errorf("executor.resume", turnstone.KindNotFound,
			"image "+c.Digest.Short(), "is missing"))
	}
	dir, err := r.Dir.MkdirAll("cache", "roots")
	if err != nil {
		return err
	}
	lock, err := statedir.Acquire(ctx, filepath.Join(dir, "lock"), nil)
	if err != nil {
		return err
	}
	defer lock.Release()
	old, _ := filepath.Glob(filepath.Join(dir, "*.erofs.json"))
	for _, note := range old {
		if st, err := os.Stat(note); err == nil && time.Since(st.ModTime()) > rootsAge {
			_, _ = os.Remove(note), os.Remove(note[:len(note)-len(".json")])
		}
	}
	in, err := cs.Store.OpenContent(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	return writeImage(ctx, in, dir, pathOf(r.Dir, c.Digest))
}

// writeImage writes a file atomically, and a stamp beside the file.
func writeImage(ctx context.Context, in io.Reader, dir, path string) error {
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = io.Copy(f, in)
	if err = errors.Join(err, f.Chmod(0o444), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	st, err := filestamp.Of(ctx, path)
	if err != nil {
		return err
	}
	b, _ := json.Marshal(st) // plain data always encodes
	return filestamp.WriteFile(path+".json", b, 0o600)
}
