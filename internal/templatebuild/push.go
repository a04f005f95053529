package templatebuild

import (
	"context"
	"encoding/json"
	"os"
	"path"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/template/oci"
	"turnstone.dev/turnstone/internal/template/share"
)

// A PushRequest is a template to push.
type PushRequest struct {
	Template  string       // its name; built
	Reference string       // where to, with a tag
	Progress  func(string) // gets a short description of each action
}

// Push puts a built template into a registry. Its layers are packed from its tree, so that a
// template of many layers is one layer in the registry.
func Push(ctx context.Context, x *repo.Repo, ts *template.Store, req PushRequest) (
	*turnstone.TemplatePushed, error) {
	ref, err := oci.ParseReference(req.Reference)
	if err != nil {
		return nil, err
	}
	tmpl, err := x.BuiltTemplate(ctx, req.Template)
	if err != nil {
		return nil, err
	}
	spec, err := ts.Spec(req.Template)
	if err != nil {
		return nil, err
	}
	failed := func(err error) error {
		return turnstone.NewError("template.push", turnstone.KindUnavailable,
			"template "+req.Template, err)
	}
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	tree, err := cs.TemplateTree(ctx, tmpl)
	if err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(x.Dir.Path("templates"), "push-*")
	if err != nil {
		return nil, failed(err)
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil { // so that a crash leaves nothing
		return nil, failed(err)
	}
	req.Progress("packing the files of template " + req.Template)
	layer, err := share.Layer(ctx, cs.Store, tree, file)
	if err != nil {
		return nil, failed(err)
	}
	name := path.Base(spec.Name) // of an image, its last part
	if i := strings.IndexAny(name, ":@"); i > 0 {
		name = name[:i] // without a tag
	}
	t := oci.Artifact{Name: name, Digest: tmpl.Digest, FSHash: tree.Hash,
		Description: spec.Description, Env: tmpl.Env, Workdir: tmpl.Workdir,
		User: tmpl.User, Machine: tmpl.Machine}
	if t.Specs, err = chain(spec, name); err != nil {
		return nil, failed(err)
	}
	req.Progress("pushing " + turnstone.Bytes(layer.Size).Human() + " to " + ref.String())
	d, err := ts.Registry(req.Progress).Push(ctx, ref, t, []oci.LayerFile{layer})
	if err != nil {
		return nil, err
	}
	return &turnstone.TemplatePushed{Template: t.Name, TemplateDigest: tmpl.Digest,
		Reference: ref.String(), Pinned: ref.WithDigest(d).String(), Digest: d,
		Size: layer.Size}, nil
}

// chain returns the spec and those of the templates below it, the lowest first, without the content
// of their files: the layers have it. The spec is called name.
func chain(spec *template.Spec, name string) ([]json.RawMessage, error) {
	var all []json.RawMessage
	for at := spec; at != nil; at = at.Lower() {
		short := *at
		if short.Files = nil; at == spec {
			short.Name = name
		}
		for _, f := range at.Files {
			short.Files = append(short.Files, template.File{Path: f.Path, Mode: f.Mode})
		}
		b, err := json.Marshal(&short)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	slices.Reverse(all)
	return all, nil
}
