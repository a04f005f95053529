package registry

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"

	"golang.org/x/net/html"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// A PipFile is a file that pip received.
type PipFile struct {
	Name    string `toml:"name" json:"name"` // of the project, normalized (PEP 503)
	Version string `toml:"version" json:"version"`
	File    string `toml:"file" json:"file"`
	SHA256  string `toml:"sha256" json:"sha256"` // hex
}

// Check rejects files that no build could have written.
func (f PipFile) Check() error {
	if raw, err := hex.DecodeString(f.SHA256); err != nil || len(raw) != 32 ||
		!pipName.MatchString(f.Name) || !plainFile(f.File) || !plainWord(f.Version) {
		return fmt.Errorf("%.100q is not a file of pip", f.Name+" "+f.File)
	}
	return nil
}

var pipName = lazyregexp.New(`^[a-z0-9]+(?:-[a-z0-9]+)*$`)

// plainFile rejects names that would lead elsewhere.
func plainFile(name string) bool {
	return name != "" && len(name) <= 300 && path.Base(name) == name && name != "." &&
		name != ".." && plainWord(name)
}

func plainWord(s string) bool {
	return len(s) <= 300 && !strings.ContainsFunc(s,
		func(r rune) bool { return r <= ' ' || r > '~' })
}

// pipUpstream is a file in an index.
type pipUpstream struct {
	project string
	address string
	file    string
	sha256  string // hex; empty: not in the index
	python  string // the file's requirement, such as ">=3.8"
	yanked  bool
}

// id returns this server's name of the file.
func (f *pipUpstream) id() string {
	if f.sha256 != "" {
		return f.sha256
	}
	return "u" + turnstone.DigestBytes([]byte(f.address)).Hex()
}

const (
	pipJSON = "application/vnd.pypi.simple.v1+json"
	pipHTML = "application/vnd.pypi.simple.v1+html"
)

// normalize returns a project's name in the form of indexes (PEP 503).
func normalize(name string) string {
	return strings.ToLower(regexp.MustCompile(`[-_.]+`).ReplaceAllString(name, "-"))
}

// read waits until another index may be read; false: ctx has ended. The caller calls done
// afterwards.
func (s *Server) read(ctx context.Context) bool {
	select {
	case s.indexes <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Server) done() { <-s.indexes }

// servePip answers simple/<project>/ and file/<id>/<name>.
func (s *Server) servePip(w http.ResponseWriter, r *http.Request, rest string) {
	parts := strings.Split(strings.Trim(rest, "/"), "/")
	switch {
	case len(parts) == 2 && parts[0] == "simple" && pipName.MatchString(normalize(parts[1])):
		s.servePipProject(w, r, normalize(parts[1]))
	case len(parts) == 3 && parts[0] == "file":
		s.servePipFile(w, r, parts[1])
	default:
		http.Error(w, "no such place", http.StatusNotFound)
	}
}

func (s *Server) servePipProject(w http.ResponseWriter, r *http.Request, project string) {
	what := "package " + project + " of pip at " + s.pip.Host
	if !s.read(r.Context()) {
		return // the client is gone
	}
	defer s.done()
	files, err := s.pipProject(r.Context(), project)
	if err == nil && len(files) == 0 {
		err = turnstone.NewError("registry.pip", turnstone.KindNotFound, project, nil)
	}
	if err != nil {
		s.fail(w, what, err)
		return
	}
	s.mu.Lock()
	for _, f := range files {
		if len(s.files) < maxPipFiles {
			s.files[f.id()] = f
		}
	}
	s.mu.Unlock()
	base := "http://" + r.Host + "/" + s.token + "/pip/file/"
	if strings.Contains(r.Header.Get("Accept"), pipJSON) {
		err = writePipJSON(w, project, base, files)
	} else {
		err = writePipHTML(w, project, base, files)
	}
	if err != nil {
		fmt.Fprintf(s.opts.Log, "registry: pip: %v\n", err)
	}
}

// pipProject returns the files of a project that this build may have.
func (s *Server) pipProject(ctx context.Context, project string) ([]pipUpstream, error) {
	locked := map[string]bool{}
	if s.opts.Locked {
		for _, f := range s.opts.Pips {
			if f.Name == project {
				locked[f.SHA256] = true
			}
		}
		if len(locked) == 0 {
			return nil, nil
		}
	}
	files, err := s.pipFiles(ctx, project)
	if err != nil {
		return nil, err
	}
	if !s.opts.Locked {
		return files, nil
	}
	kept := files[:0]
	for _, f := range files {
		if locked[f.sha256] {
			kept = append(kept, f)
		}
	}
	return kept, nil
}

// pipFiles fetches the list of a project's files from the index.
func (s *Server) pipFiles(ctx context.Context, project string) ([]pipUpstream, error) {
	at := *s.pip
	at.Path += "/" + project + "/"
	body, kind, err := s.text(ctx, at.String(), pipJSON+", "+pipHTML+";q=0.2, text/html;q=0.1")
	if err != nil {
		return nil, err
	}
	files, err := parsePip(project, kind, body, &at)
	if err != nil {
		return nil, turnstone.NewError("registry.pip", turnstone.KindIntegrity, place(at.String()),
			err).WithHint("set PIP_INDEX_URL to an index of pip")
	}
	return files, nil
}

// maxPipFiles bounds the files of one project.
const maxPipFiles = 200_000

// parsePip reads an index page, which is JSON (PEP 691) or HTML (PEP 503).
func parsePip(project, kind string, body []byte, at *url.URL) ([]pipUpstream, error) {
	var files []pipUpstream
	add := func(address, file, sha256, python string, yanked bool) error {
		u, err := at.Parse(address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" {
			return nil // pip would skip it too
		}
		if file == "" {
			file = path.Base(u.Path)
		}
		if sha256 == "" {
			sha256, _ = strings.CutPrefix(u.Fragment, "sha256=")
		}
		u.Fragment = ""
		if raw, err := hex.DecodeString(sha256); err != nil || len(raw) != 32 {
			sha256 = ""
		}
		if !plainFile(file) {
			return nil
		}
		if len(files) >= maxPipFiles {
			return fmt.Errorf("names more than %d files", maxPipFiles)
		}
		if u.User == nil && u.Host == at.Host {
			u.User = at.User
		}
		files = append(files, pipUpstream{project: project, address: u.String(), file: file,
			sha256: strings.ToLower(sha256), python: python, yanked: yanked})
		return nil
	}
	if strings.HasPrefix(kind, pipJSON) {
		var page struct {
			Files []struct {
				Filename string            `json:"filename"`
				URL      string            `json:"url"`
				Hashes   map[string]string `json:"hashes"`
				Python   string            `json:"requires-python"`
				Yanked   any               `json:"yanked"`
			} `json:"files"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, err
		}
		for _, f := range page.Files {
			if err := add(f.URL, f.Filename, f.Hashes["sha256"], f.Python, f.Yanked != nil &&
				f.Yanked != false); err != nil {
				return nil, err
			}
		}
		return files, nil
	}
	z := html.NewTokenizer(bytes.NewReader(body))
	for {
		switch z.Next() {
		case html.ErrorToken:
			if err := z.Err(); !errors.Is(err, io.EOF) {
				return nil, err
			}
			return files, nil
		case html.StartTagToken:
			t := z.Token()
			if t.Data != "a" {
				continue
			}
			var href, python string
			yanked := false
			for _, a := range t.Attr {
				switch a.Key {
				case "href":
					href = a.Val
				case "data-requires-python":
					python = a.Val
				case "data-yanked":
					yanked = true
				}
			}
			if href == "" {
				continue
			}
			if err := add(href, "", "", python, yanked); err != nil {
				return nil, err
			}
		}
	}
}

func writePipJSON(w http.ResponseWriter, project, base string, files []pipUpstream) error {
	type file struct {
		Filename string            `json:"filename"`
		URL      string            `json:"url"`
		Hashes   map[string]string `json:"hashes"`
		Python   string            `json:"requires-python,omitempty"`
		Yanked   bool              `json:"yanked,omitempty"`
	}
	page := struct {
		Meta  map[string]string `json:"meta"`
		Name  string            `json:"name"`
		Files []file            `json:"files"`
	}{map[string]string{"api-version": "1.0"}, project, []file{}}
	for _, f := range files {
		hashes := map[string]string{}
		if f.sha256 != "" {
			hashes["sha256"] = f.sha256
		}
		page.Files = append(page.Files,
			file{f.file, base + f.id() + "/" + url.PathEscape(f.file), hashes, f.python, f.yanked})
	}
	w.Header().Set("Content-Type", pipJSON)
	return json.NewEncoder(w).Encode(page)
}

var pipPage = htmltemplate.Must(htmltemplate.New("pip").Parse(`<!DOCTYPE html><html><body>
{{range .}}<a href="{{.Address}}"{{with .Python}} data-requires-python="{{.}}"{{end}}{{if .Yanked}} data-yanked=""{{end}}>{{.File}}</a>
{{end}}</body></html>
`))

// writePipHTML is for pip before 22.2.
func writePipHTML(w http.ResponseWriter, _, base string, files []pipUpstream) error {
	type link struct {
		Address, Python, File string
		Yanked                bool
	}
	var links []link
	for _, f := range files {
		l := link{base + f.id() + "/" + url.PathEscape(f.file), f.python, f.file, f.yanked}
		if f.sha256 != "" {
			l.Address += "#sha256=" + f.sha256
		}
		links = append(links, l)
	}
	w.Header().Set("Content-Type", "text/html")
	return pipPage.Execute(w, links)
}

func (s *Server) servePipFile(w http.ResponseWriter, r *http.Request, id string) {
	s.mu.Lock()
	f, ok := s.files[id]
	s.mu.Unlock()
	if !ok {
		http.Error(w, "no such file", http.StatusNotFound)
		return
	}
	d, key := want(""), "pip-"+f.id()
	if f.sha256 != "" {
		d = want("sha256:" + f.sha256)
		key = d.key()
	}
	at, err := s.file(r.Context(), f.address, key, d)
	if err != nil {
		s.fail(w, f.file, err)
		return
	}
	got, ok := s.send(w, r, f.file, at, d)
	if !ok {
		return
	}
	sum, _ := strings.CutPrefix(string(got), "sha256:")
	s.mu.Lock()
	s.pips[PipFile{f.project, pipVersion(f.project, f.file), f.file, sum}] = true
	s.mu.Unlock()
}

// send sends a file of the cache, verifies it meanwhile, and returns its digest.
func (s *Server) send(w http.ResponseWriter, r *http.Request, name, path string,
	d want) (got want, ok bool) {
	failed := func(err error) (want, bool) {
		fmt.Fprintf(s.opts.Log, "registry: %s: %v\n", name, err)
		return "", false
	}
	in, err := os.Open(path)
	if err != nil {
		http.Error(w, "gone", http.StatusInternalServerError)
		return failed(err)
	}
	defer in.Close()
	if fi, err := in.Stat(); err == nil {
		w.Header().Set("Content-Length", fmt.Sprint(fi.Size()))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if r.Method == http.MethodHead {
		return failed(errors.New("only asked for"))
	}
	h := d.hash()
	if _, err := io.Copy(io.MultiWriter(w, h), in); err != nil {
		return failed(err)
	}
	return d.of(h), true
}

// pipVersion parses the version in a file's name (PEP 427, PEP 625).
func pipVersion(project, file string) string {
	for _, ext := range []string{".whl", ".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz", ".egg"} {
		stem, ok := strings.CutSuffix(file, ext)
		if !ok {
			continue
		}
		for i := range stem {
			if stem[i] == '-' && normalize(stem[:i]) == project {
				version, _, _ := strings.Cut(stem[i+1:], "-")
				if ext != ".whl" && ext != ".egg" {
					version = stem[i+1:]
				}
				return version
			}
		}
	}
	return ""
}
