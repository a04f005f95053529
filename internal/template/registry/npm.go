package registry

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// An NpmPackage is a package that npm received.
type NpmPackage struct {
	Name      string `toml:"name" json:"name"`
	Version   string `toml:"version" json:"version"`
	Integrity string `toml:"integrity" json:"integrity"` // as npm writes it: "sha512-" and base64
	// tags that named this version at that time, such as "latest"
	Tags []string `toml:"tags,omitempty" json:"tags,omitempty"`
}

// Check rejects packages that no build could have written.
func (p NpmPackage) Check() error {
	if _, err := integrity(p.Integrity, ""); err != nil || !npmName.MatchString(p.Name) ||
		!npmVersion.MatchString(p.Version) ||
		!slices.Equal(p.Tags, slices.Compact(slices.Sorted(slices.Values(p.Tags)))) {
		return fmt.Errorf("%.100q is not a package of npm", p.Name+"@"+p.Version)
	}
	return nil
}

var (
	npmName = lazyregexp.New(
		`^(?:@[A-Za-z0-9~_][A-Za-z0-9._~-]*/)?[A-Za-z0-9~_][A-Za-z0-9._~-]*$`)
	npmVersion = lazyregexp.New(`^[0-9A-Za-z][0-9A-Za-z.+-]{0,255}$`)
)

// integrity reads a package's digest as a registry writes it.
func integrity(sri, shasum string) (want, error) {
	for _, one := range strings.Fields(sri) {
		if b, ok := strings.CutPrefix(one, "sha512-"); ok {
			b, _, _ = strings.Cut(b, "?")
			raw, err := base64.StdEncoding.DecodeString(b)
			if err == nil && len(raw) == 64 {
				return want("sha512:" + hex.EncodeToString(raw)), nil
			}
		}
		if b, ok := strings.CutPrefix(one, "sha1-"); ok && shasum == "" {
			if raw, err := base64.StdEncoding.DecodeString(b); err == nil {
				shasum = hex.EncodeToString(raw)
			}
		}
	}
	if raw, err := hex.DecodeString(shasum); err == nil && len(raw) == 20 {
		return want("sha1:" + shasum), nil
	}
	return "", fmt.Errorf("%.100q is not a supported digest", sri)
}

// sri writes a digest as npm does.
func (d want) sri() string {
	name, text, _ := strings.Cut(string(d), ":")
	raw, _ := hex.DecodeString(text) // integrity and of create it from hex
	return name + "-" + base64.StdEncoding.EncodeToString(raw)
}

// A npmDist is the location of a version's archive.
type npmDist struct {
	Tarball   string `json:"tarball"`
	Integrity string `json:"integrity"`
	Shasum    string `json:"shasum"`
}

// serveNpm answers <package> and <package>/-/<file>; rest is still escaped.
func (s *Server) serveNpm(w http.ResponseWriter, r *http.Request, rest string) {
	rest, err := url.PathUnescape(strings.Trim(rest, "/"))
	if err != nil {
		http.Error(w, "no such place", http.StatusNotFound)
		return
	}
	name, file, archive := strings.Cut(rest, "/-/")
	if !npmName.MatchString(name) || len(name) > 214 || archive && !plainFile(file) {
		http.Error(w, "no such place", http.StatusNotFound)
		return
	}
	what := "package " + name + " of npm at " + s.npm.Host
	if archive {
		s.serveNpmArchive(w, r, name, file)
		return
	}
	if !s.read(r.Context()) {
		return // the client is gone
	}
	defer s.done()
	doc, err := s.npmDocument(r.Context(), name)
	if err != nil {
		s.fail(w, what, err)
		return
	}
	b, err := doc.encode("http://" + r.Host + "/" + s.token + "/npm/" + name + "/-/")
	if err != nil {
		s.fail(w, what, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // an error of a disconnected guest is ignored
}

// A npmDocument is a registry's description of a package ("packument").
type npmDocument struct {
	name     string
	fields   map[string]json.RawMessage
	versions map[string]map[string]json.RawMessage
	dists    map[string]npmDist
	tags     map[string]string
}

// npmDocument fetches a package's document; with a lock it contains only the locked versions.
func (s *Server) npmDocument(ctx context.Context, name string) (*npmDocument, error) {
	var locked map[string]NpmPackage
	if s.opts.Locked {
		locked = map[string]NpmPackage{}
		for _, p := range s.opts.Npms {
			if p.Name == name {
				locked[p.Version] = p
			}
		}
		if len(locked) == 0 {
			return nil, turnstone.NewError("registry.npm", turnstone.KindNotFound, name, nil)
		}
	}
	at := s.npm.String() + "/" + strings.Replace(name, "/", "%2f", 1)
	body, _, err := s.text(ctx, at, "application/vnd.npm.install-v1+json, application/json;q=0.8")
	if err != nil {
		return nil, err
	}
	doc, err := parseNpm(name, body)
	if err != nil {
		return nil, turnstone.NewError("registry.npm", turnstone.KindIntegrity, place(at), err).
			WithHint("set npm_config_registry to a registry of npm")
	}
	if locked != nil {
		doc.keep(locked)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.docs) < maxNpmDocuments {
		s.docs[name] = &npmDocument{name: name, dists: doc.dists, tags: doc.tags}
	}
	return doc, nil
}

// maxNpmDocuments bounds the packages whose locations are remembered.
const maxNpmDocuments = 20_000

// npmKnown is npmDocument for callers that need only the archives' locations.
func (s *Server) npmKnown(ctx context.Context, name string) (*npmDocument, error) {
	s.mu.Lock()
	doc := s.docs[name]
	s.mu.Unlock()
	if doc != nil {
		return doc, nil
	}
	if !s.read(ctx) {
		return nil, ctx.Err()
	}
	defer s.done()
	return s.npmDocument(ctx, name)
}

func parseNpm(name string, body []byte) (*npmDocument, error) {
	d := &npmDocument{name: name, dists: map[string]npmDist{}}
	if err := json.Unmarshal(body, &d.fields); err != nil {
		return nil, err
	}
	if err := unmarshal(d.fields["versions"], &d.versions); err != nil {
		return nil, fmt.Errorf("versions: %w", err)
	}
	if err := unmarshal(d.fields["dist-tags"], &d.tags); err != nil {
		return nil, fmt.Errorf("dist-tags: %w", err)
	}
	for v, fields := range d.versions {
		var dist npmDist
		if !npmVersion.MatchString(v) || unmarshal(fields["dist"], &dist) != nil ||
			dist.Tarball == "" {
			delete(d.versions, v)
			continue
		}
		d.dists[v] = dist
	}
	return d, nil
}

func unmarshal(b json.RawMessage, to any) error {
	if len(b) == 0 {
		return nil
	}
	return json.Unmarshal(b, to)
}

// keep keeps only the locked versions, and the tags that they had.
func (d *npmDocument) keep(locked map[string]NpmPackage) {
	d.tags = map[string]string{}
	for v := range d.versions {
		if _, ok := locked[v]; !ok {
			delete(d.versions, v)
			delete(d.dists, v)
		}
	}
	for v, p := range locked {
		for _, tag := range p.Tags {
			d.tags[tag] = v
		}
		if dist, ok := d.dists[v]; ok {
			dist.Integrity = p.Integrity // independent of the registry's current answer
			d.dists[v] = dist
		}
	}
}

// encode returns the document with the archives at base.
func (d *npmDocument) encode(base string) ([]byte, error) {
	versions := map[string]map[string]json.RawMessage{}
	for v, fields := range d.versions {
		var dist map[string]json.RawMessage
		if err := json.Unmarshal(fields["dist"], &dist); err != nil {
			return nil, err
		}
		address, err := json.Marshal(base + url.PathEscape(d.file(v)))
		if err != nil {
			return nil, err
		}
		dist["tarball"] = address
		if sum := d.dists[v].Integrity; sum != "" {
			if dist["integrity"], err = json.Marshal(sum); err != nil {
				return nil, err
			}
		}
		out := map[string]json.RawMessage{}
		for k, f := range fields {
			out[k] = f
		}
		if out["dist"], err = json.Marshal(dist); err != nil {
			return nil, err
		}
		versions[v] = out
	}
	fields := map[string]json.RawMessage{}
	for k, f := range d.fields {
		fields[k] = f
	}
	var err error
	if fields["versions"], err = json.Marshal(versions); err != nil {
		return nil, err
	}
	if fields["dist-tags"], err = json.Marshal(d.tags); err != nil {
		return nil, err
	}
	delete(fields, "time") // a field of the full document, and large
	return json.Marshal(fields)
}

// file returns this server's name of a version's archive.
func (d *npmDocument) file(version string) string {
	return d.name[strings.LastIndexByte(d.name, '/')+1:] + "-" + version + ".tgz"
}

func (s *Server) serveNpmArchive(w http.ResponseWriter, r *http.Request, name, file string) {
	doc, err := s.npmKnown(r.Context(), name)
	if err != nil {
		s.fail(w, "package "+name+" of npm at "+s.npm.Host, err)
		return
	}
	version := ""
	for v, dist := range doc.dists {
		if file == doc.file(v) || file == path.Base(dist.Tarball) {
			version = v
		}
	}
	what := "package " + doc.name + " of npm with a file " + file
	if version == "" {
		s.fail(w, what, turnstone.NewError("registry.npm", turnstone.KindNotFound, file, nil))
		return
	}
	dist := doc.dists[version]
	d, err := integrity(dist.Integrity, dist.Shasum)
	address, aerr := s.npmAddress(dist.Tarball)
	if err == nil {
		err = aerr
	}
	if err != nil {
		s.fail(w, what, turnstone.NewError("registry.npm", turnstone.KindIntegrity,
			doc.name+"@"+version,
			err))
		return
	}
	at, err := s.file(r.Context(), address, d.key(), d)
	if err != nil {
		s.fail(w, what, err)
		return
	}
	if _, ok := s.send(w, r, file, at, d); !ok {
		return
	}
	p := NpmPackage{Name: doc.name, Version: version, Integrity: d.sri()}
	for tag, v := range doc.tags {
		if v == version {
			p.Tags = append(p.Tags, tag)
		}
	}
	slices.Sort(p.Tags)
	s.mu.Lock()
	s.npms[p.Name+"@"+p.Version] = p
	s.mu.Unlock()
}

// npmAddress returns the address of an archive: at the registry's own host, whatever name of it the
// document contains.
func (s *Server) npmAddress(tarball string) (string, error) {
	u, err := url.Parse(tarball)
	if err != nil {
		return "", fmt.Errorf("its archive has no address: %w", withoutAddress(err))
	}
	if u.Hostname() == "registry.npmjs.org" && s.npm.Hostname() != u.Hostname() {
		// A mirror that forwards npm's own document.
		moved := *s.npm
		moved.Path += u.Path
		return moved.String(), nil
	}
	if u.Host != s.npm.Host || u.Scheme != "https" && u.Scheme != s.npm.Scheme {
		return "", fmt.Errorf("its archive is at another host, %s", u.Host)
	}
	u.User = s.npm.User
	return u.String(), nil
}
