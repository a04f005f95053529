package bundle

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/template"
)

// withTemplate is a session on a template that a user registered, as a file.
func withTemplate(t *testing.T, req ExportRequest) (file []byte, files map[string]string) {
	t.Helper()
	p := repotest.New(t)
	files = map[string]string{"/etc/own": "only here", "/large": repotest.Random(2<<20, 3)}
	p.Image = "mine"
	p.Leaves(p.Session("s"), p.Template("mine", files))
	var out bytes.Buffer
	req.Session = "s"
	ok[*turnstone.ExportReport](t)(host(p.Repo).Export(t.Context(), req, &out))
	return out.Bytes(), files
}

// TestImportWithoutTemplate checks that all data of the file is imported, that contents of a
// missing template are reported, and that they are found after the template is built.
func TestImportWithoutTemplate(t *testing.T) {
	file, files := withTemplate(t, ExportRequest{})
	ctx := t.Context()
	q := repotest.New(t)
	for _, how := range []turnstone.ImportBuild{"", turnstone.BuildNone, turnstone.BuildKnown} {
		r := repotest.New(t)
		rep := ok[*turnstone.ImportReport](t)(host(r.Repo).Import(ctx, ImportRequest{Build: how},
			bytes.NewReader(file)))
		if !rep.Fresh || rep.Missing != 2 || rep.MissingBytes != int64(len("only here")+2<<20) ||
			len(rep.Templates) != 1 || rep.Templates[0].Name != "mine" ||
			!strings.Contains(rep.Templates[0].Why, "is unknown") ||
			!strings.Contains(rep.Templates[0].Hint, "--build all") {
			t.Errorf("%q: %+v", how, rep)
		}
	}
	ok[*turnstone.ImportReport](t)(host(q.Repo).Import(ctx, ImportRequest{}, bytes.NewReader(file)))
	if info := ok[*turnstone.TurnInfo](t)(q.Repo.Show(ctx, "s@1")); info.State == nil {
		t.Errorf("%+v", info)
	}
	if _, err := q.Repo.Receipt(ctx, "s@1"); err != nil {
		t.Error(err)
	}
	_, err := q.Repo.OpenFile(ctx, "s@1", "/etc/own")
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(turnstone.HintOf(err), "turn template build mine") {
		t.Errorf("a file whose template is not here: %v", err)
	}
	if r := ok[*turnstone.FsckReport](t)(q.Repo.Fsck(ctx)); r.OK() {
		t.Error("missing data is not reported")
	}
	if _, err := q.Repo.GC(ctx, turnstone.GCRequest{}); err != nil {
		t.Error(err)
	}
	// After a build of the template, the store finds its files.
	q.Template("mine", files)
	fresh := repotest.Open(q.Repo.Dir)
	defer func() { _ = fresh.Close() }()
	built := ok[*turnstone.Template](t)(repotest.Templates(fresh).Build(ctx, "mine",
		template.BuildOptions{}))
	if err := fresh.IndexTemplate(ctx, built); err != nil {
		t.Fatal(err)
	}
	if r := ok[*turnstone.FsckReport](t)(fresh.Fsck(ctx)); !r.OK() {
		t.Errorf("%+v", r.Problems)
	}
	for path, text := range files {
		in := ok[io.ReadCloser](t)(fresh.OpenFile(ctx, "s@1", path))
		if b := ok[[]byte](t)(io.ReadAll(in)); string(b) != text {
			t.Errorf("%s: %d bytes", path, len(b))
		}
		_ = in.Close()
	}
	// On the original host, and with --full, nothing is missing.
	r := repotest.New(t)
	r.Template("mine", files)
	if rep := ok[*turnstone.ImportReport](t)(host(r.Repo).Import(ctx,
		ImportRequest{Build: turnstone.BuildKnown},
		bytes.NewReader(file))); rep.Missing != 0 || len(rep.Templates) != 0 {
		t.Errorf("%+v", rep)
	}
	full, _ := withTemplate(t, ExportRequest{Full: true})
	if rep := ok[*turnstone.ImportReport](t)(host(repotest.New(t).Repo).Import(ctx, ImportRequest{},
		bytes.NewReader(full))); rep.Missing != 0 || len(rep.Templates) != 0 {
		t.Errorf("%+v", rep)
	}
}

// TestImportHostileTail checks that the file's description of templates is not trusted.
func TestImportHostileTail(t *testing.T) {
	file, _ := withTemplate(t, ExportRequest{})
	ctx := t.Context()
	good := repotest.Unpack(t, file)
	last := len(good) - 1
	if good[last].Name != exportTailAt {
		t.Fatal(good[last].Name)
	}
	var tail exportTail
	if err := json.Unmarshal(good[last].Data, &tail); err != nil || len(tail.LeftOut) != 2 ||
		len(tail.Specs) != 1 {
		t.Fatal(tail, err)
	}
	with := func(change func(*exportTail)) []byte {
		var other exportTail
		_ = json.Unmarshal(good[last].Data, &other)
		change(&other)
		entries := slices.Clone(good)
		entries[last].Data = ok[[]byte](t)(json.Marshal(other))
		return repotest.Pack(t, entries)
	}
	for what, bad := range map[string][]byte{
		"no tail": repotest.Pack(t, good[:last]),
		"two":     repotest.Pack(t, append(slices.Clone(good), good[last])),
		"a link": repotest.Pack(t,
			append(slices.Clone(good[:last]),
				repotest.Entry{Name: exportTailAt, Kind: tar.TypeSymlink})),
		"less left out": with(func(e *exportTail) { e.LeftOut = e.LeftOut[1:] }),
	} {
		q := repotest.New(t)
		if rep, err := host(q.Repo).Import(ctx, ImportRequest{},
			bytes.NewReader(bad)); err == nil || turnstone.KindOf(err) == turnstone.KindInternal {
			t.Errorf("%s: %+v, %v", what, rep, err)
		}
		if all := ok[[]turnstone.SessionInfo](t)(q.Repo.Sessions(ctx)); len(all) != 0 {
			t.Errorf("%s: left %v", what, all)
		}
	}
	// A content that is declared as omitted is still required if no template has it.
	for i := 1; i < last; i++ {
		entries := slices.Delete(slices.Clone(good), i, i+1)
		var all exportTail
		_ = json.Unmarshal(good[last].Data, &all)
		all.LeftOut = append(all.LeftOut,
			turnstone.Digest("sha256:"+strings.TrimPrefix(good[i].Name, exportObject)))
		entries[len(entries)-1].Data = ok[[]byte](t)(json.Marshal(all))
		q := repotest.New(t)
		rep, err := host(q.Repo).Import(ctx, ImportRequest{},
			bytes.NewReader(repotest.Pack(t, entries)))
		if err == nil && rep.Missing != 3 {
			t.Errorf("%s: %+v", good[i].Name, rep)
		}
	}
	// Hostile specs are not built, and not registered.
	for what, change := range map[string]func(*template.Spec){
		"a name that leads out": func(s *template.Spec) { s.Name = "../../x" },
		"built in":              func(s *template.Spec) { s.Name = "base" },
		"a file out of it": func(s *template.Spec) {
			s.Files = []template.File{{Path: "/../../x", Content: []byte("x")}}
		},
		"a package that is an option": func(s *template.Spec) { s.Packages = []string{"-o"} },
		"another name's spec":         func(s *template.Spec) { s.Name = "other" },
	} {
		q := repotest.New(t)
		rep := ok[*turnstone.ImportReport](t)(host(q.Repo).Import(ctx,
			ImportRequest{Build: turnstone.BuildAll},
			bytes.NewReader(with(func(e *exportTail) { change(e.Specs[0]) }))))
		if rep.Missing != 2 || len(rep.Templates) != 1 {
			t.Errorf("%s: %+v", what, rep)
		}
		for _, name := range ok[[]string](t)(repotest.Templates(q.Repo).Names()) {
			if name == "mine" || name == "other" || name == "x" {
				t.Errorf("%s: %s is registered", what, name)
			}
		}
	}
}
