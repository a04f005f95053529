package bundle

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/template"
)

// readTail reads the last entry, which describes templates.
func (m *importer) readTail(h *tar.Header) error {
	if h.Typeflag != tar.TypeReg || h.Size > maxExportTail || m.tail != nil {
		return refused("has %s twice, or not as a file of at most %s", exportTailAt,
			turnstone.Bytes(maxExportTail).Human())
	}
	b, err := io.ReadAll(io.LimitReader(m.tr, maxExportTail))
	if err != nil {
		return notExported(err)
	}
	m.tail = &exportTail{}
	if err := json.Unmarshal(b, m.tail); err != nil {
		return notExported(err)
	}
	for _, d := range m.tail.LeftOut {
		m.leftOut[d] = true
	}
	return nil
}

// readTemplates lets the store find the files of the templates from which m's turns started; these
// templates may have no index yet. Missing templates are built if req requests it.
func (m *importer) readTemplates(ctx context.Context, batch *store.Batch,
	req ImportRequest) error {
	progress := req.Progress
	if progress == nil {
		progress = func(string) {}
	}
	read := map[string]bool{}
	for _, t := range m.graph.Turns {
		rec, err := m.cs.Record(ctx, t)
		if err != nil || read[rec.Image] {
			continue // verify reports the error
		}
		read[rec.Image] = true
		tmpl, err := m.host.Repo.BuiltTemplate(ctx, rec.Image)
		if err != nil {
			tmpl, err = m.importTemplate(ctx, rec, req.Build, progress)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			m.leave(rec, repo.CauseOf(err).Error(), turnstone.HintOf(err))
			continue
		}
		if _, err := m.host.Templates.Tree(ctx, tmpl, batch); err != nil {
			return err
		}
		if tmpl.Digest != rec.Template {
			m.leave(rec, "this host has another template of this name: "+tmpl.Digest.Short(),
				"export with --full")
		}
	}
	return nil
}

// leave records that the template of rec is missing.
func (m *importer) leave(rec *turnstone.TurnRecord, why, hint string) {
	m.unbuilt = append(m.unbuilt, turnstone.UnbuiltTemplate{Name: rec.Image,
		Digest: rec.Template, Why: why, Hint: hint})
}

// importTemplate builds the template of rec's turn if how allows it.
func (m *importer) importTemplate(ctx context.Context, rec *turnstone.TurnRecord,
	how turnstone.ImportBuild, progress func(string)) (*turnstone.Template, error) {
	fail := func(hint, why string) error {
		return turnstone.NewError("executor.import", turnstone.KindUnavailable,
			"template "+rec.Image, errors.New(why)).WithHint(hint)
	}
	if err := template.CheckName(rec.Image); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%.600s", strings.Trim(strconv.Quote(rec.Image), `"`))
	all := "turn session import --build all"
	ts := m.host.Templates
	_, err := ts.Spec(rec.Image)
	switch {
	case err == nil && how != turnstone.BuildKnown && how != turnstone.BuildAll:
		return nil, fail("turn template build "+name, "is not built")
	case err == nil:
		return ts.Ensure(ctx, rec.Image, progress)
	case turnstone.KindOf(err) != turnstone.KindNotFound && !template.IsImage(rec.Image):
		return nil, err
	case template.IsImage(rec.Image) && how != turnstone.BuildAll:
		return nil, fail("turn template pull "+name+", or "+all,
			"is an image that was not pulled")
	case template.IsImage(rec.Image):
		spec, err := ts.Resolve(ctx, rec.Image, progress)
		if err != nil {
			return nil, err
		}
		return ts.Ensure(ctx, spec.Name, progress)
	}
	var specs []*template.Spec
	if m.tail != nil {
		specs = m.tail.Specs
	}
	for i, s := range specs {
		if s == nil || s.Name != rec.Image {
			continue
		}
		if how != turnstone.BuildAll {
			return nil, fail(all+" builds it by the spec in the file; "+
				"the spec installs and runs software of its author's choice in a sandbox",
				"is unknown")
		}
		return adopt(ctx, ts, specs[:i+1], progress)
	}
	return nil, fail("export with --full", "is unknown, and the file has no spec of it")
}

// adopt builds the last of specs, and the bases that it needs among the others.
func adopt(ctx context.Context, ts Templates, specs []*template.Spec,
	progress func(string)) (*turnstone.Template, error) {
	last := specs[len(specs)-1]
	for i := len(specs) - 2; i >= 0; i-- {
		if specs[i] != nil && specs[i].Name == last.Base {
			if _, err := adopt(ctx, ts, specs[:i+1], progress); err != nil {
				return nil, err
			}
			break
		}
	}
	return ts.Adopt(ctx, last, progress)
}

// report adds the missing contents and templates to the report.
func (m *importer) report() {
	for _, size := range m.missing {
		m.rep.Missing++
		m.rep.MissingBytes += size
	}
	if m.rep.Missing > 0 {
		m.rep.Templates = append(m.rep.Templates, m.unbuilt...)
	}
}

// toGetTemplates is the hint on how to get the contents that the file omits.
func (m *importer) toGetTemplates() string {
	how := "build the same template"
	for i, t := range m.unbuilt[:min(len(m.unbuilt), 5)] {
		if i == 0 {
			how = t.Hint
		} else {
			how += ", " + t.Hint
		}
	}
	return "the file omits the contents of the session's template: " + how +
		", or export with --full"
}
