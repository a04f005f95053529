package plan

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/tarfiles"
)

// files resolves the files that are copied in and out, relative to the working directory.
func (p *Plan) files(req Request) error {
	p.Add, p.Get = nil, nil
	for _, file := range req.Document.Front.Files {
		t, err := p.documentFile(req.Dir, file)
		if err != nil {
			return err
		}
		p.Add = append(p.Add, t)
	}
	return p.transfers(req.Add, req.Get)
}

// documentFile resolves one entry of the document's files:. A document is untrusted, so it can name
// only files below its own folder, also through symbolic links.
func (p *Plan) documentFile(dir, file string) (sandbox.Transfer, error) {
	none := sandbox.Transfer{}
	t, err := document.ParseTransfer(file)
	if err != nil {
		return none, invalid("files", "%w", err)
	}
	src := t.Path
	if dir == "" {
		return none, outsideFolder(src, errors.New("the document has no folder"))
	}
	if !filepath.IsLocal(src) {
		return none, outsideFolder(src, errLeaves)
	}
	if p.folder == nil {
		if p.folder, err = os.OpenRoot(dir); err != nil {
			return none, outsideFolder(src, err)
		}
	}
	if _, err := p.folder.Stat(src); err != nil {
		return none, outsideFolder(src, err)
	}
	return sandbox.Transfer{Path: filepath.Join(dir, src), Dest: p.inside(t.Dest, src),
		In: p.folder}, nil
}

// inside returns the path of name in the sandbox: dest, or else the same name in the working
// directory. A trailing slash is kept because it means "into this folder".
func (p *Plan) inside(dest, name string) string { return tarfiles.Into(p.Cwd, dest, name) }

func (p *Plan) transfers(add, get []document.Transfer) error {
	for _, t := range add {
		abs, err := filepath.Abs(t.Path)
		if err == nil {
			_, err = os.Stat(abs)
		}
		if err != nil {
			return invalid("--add", "%w", err)
		}
		p.Add = append(p.Add, sandbox.Transfer{Path: abs, Dest: p.inside(t.Dest, abs)})
	}
	for _, t := range get {
		if t.Path == "" {
			return invalid("--get", "no path given")
		}
		p.Get = append(p.Get, sandbox.Transfer{Path: tarfiles.Below(p.Cwd, t.Path),
			Dest: cmp.Or(t.Dest, ".")})
	}
	return nil
}

var errLeaves = errors.New("leaves the document's folder")

// outsideFolder returns the error about a document's file that is not in its folder.
func outsideFolder(src string, err error) error {
	return turnstone.NewError(op, turnstone.KindInvalid, "files: "+src, err).
		WithHint("name files in the document's own folder; " +
			"take others out of files: and give them with --add")
}
