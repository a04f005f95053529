package envd

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strings"
	"sync/atomic"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// maxParts bounds the files of one upload.
const maxParts = 1000

// userQuery returns the user that a request of plain HTTP names.
func userQuery(r *http.Request) (string, error) {
	if name := r.URL.Query().Get("username"); name != "" {
		return name, checkUser(name)
	}
	return userOf(r.Header)
}

// download answers the content of a file.
func download(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	user, err := userQuery(r)
	if err != nil {
		return err
	}
	p, err := at(ctx, user, wire.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = p.c.Close() }()
	name, err := p.v.resolve(r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	i, err := p.c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: name})
	switch {
	case err != nil:
		return missing(err, name)
	case i.File.Type == wire.FileSystemFileInfoTypeDirectory:
		return fail(connect.CodeInvalidArgument, "path '"+name+"' is a directory")
	case i.File.Type != wire.FileSystemFileInfoTypeFile:
		return fail(connect.CodeInvalidArgument, "path '"+name+"' is not a regular file")
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment",
		map[string]string{"filename": path.Base(name)}))
	began, err := read(ctx, p.c, name, w)
	if err != nil && began {
		// the caller would take what it has for the whole
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		h.Del("Content-Disposition")
	}
	return missing(err, name)
}

// read copies a file to w, and reports whether something was written.
func read(ctx context.Context, c *wire.Conn, name string, w io.Writer) (began bool, err error) {
	id := c.NewStream()
	r, err := c.Receiver(id)
	if err != nil {
		return false, err
	}
	defer func() { _ = r.Close() }()
	defer context.AfterFunc(ctx, func() { _ = r.Close() })()
	answered := make(chan error, 1)
	go func() {
		_, err := c.FileSystemRead(ctx, &wire.FileSystemReadParams{Path: name, Stream: id})
		if err != nil {
			_ = r.Close()
		}
		answered <- err
	}()
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, wire.SendChunk))
	if err != nil {
		_ = r.Close()
	}
	if failed := <-answered; failed != nil {
		err = failed
	}
	return n > 0, err
}

// upload writes the files of a request: its body, or the parts of a form.
func upload(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	user, err := userQuery(r)
	if err != nil {
		return err
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Metadata-") {
			return fail(connect.CodeInvalidArgument, "metadata of files is not kept here")
		}
	}
	p, err := at(ctx, user, wire.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = p.c.Close() }()
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && r.Header.Get("Content-Type") != "" {
		return fail(connect.CodeInvalidArgument, "the content type is malformed")
	}
	var all []map[string]string
	if kind == "multipart/form-data" {
		all, err = p.uploadParts(ctx, r)
	} else {
		all, err = p.uploadBody(ctx, r)
	}
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, all)
	return nil
}

// uploadBody writes the body of a request to the file that its query names.
func (p *place) uploadBody(ctx context.Context, r *http.Request) ([]map[string]string, error) {
	name := r.URL.Query().Get("path")
	if name == "" {
		return nil, fail(connect.CodeInvalidArgument, "the request names no path")
	}
	body, err := decoded(r)
	if err != nil {
		return nil, err
	}
	one, err := p.write(ctx, name, body)
	return []map[string]string{one}, err
}

// decoded returns the body of a request without its encoding.
func decoded(r *http.Request) (io.Reader, error) {
	switch strings.ToLower(r.Header.Get("Content-Encoding")) {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, fail(connect.CodeInvalidArgument, "the body is not in gzip's format")
		}
		return z, nil
	}
	return nil, fail(connect.CodeInvalidArgument, "the encoding of the body is neither gzip nor identity")
}

// uploadParts writes the parts of a form that have the name file.
func (p *place) uploadParts(ctx context.Context, r *http.Request) ([]map[string]string, error) {
	body, err := decoded(r)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(body)
	form, err := r.MultipartReader()
	if err != nil {
		return nil, fail(connect.CodeInvalidArgument, "the form is malformed")
	}
	named := r.URL.Query().Get("path")
	all, seen := []map[string]string{}, map[string]bool{}
	for {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fail(connect.CodeInvalidArgument, "the form is cut off or malformed")
		}
		if part.FormName() != "file" {
			continue
		}
		name := named
		if name == "" {
			name = fileName(part)
		}
		switch {
		case name == "":
			return nil, fail(connect.CodeInvalidArgument, "a part of the form has no file name")
		case len(all) >= maxParts:
			return nil, fail(connect.CodeInvalidArgument, "the form has too many files")
		case seen[name]:
			return nil, fail(connect.CodeInvalidArgument, "two parts of the form are for one file")
		}
		seen[name] = true
		one, err := p.write(ctx, name, part)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
}

// fileName returns the whole name of a part: multipart.Part.FileName has its last element only.
func fileName(part *multipart.Part) string {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return params["filename"]
}

// write writes a file, and the directories above it. Either all of r is in the file, or the file is
// as before.
func (p *place) write(ctx context.Context, name string, r io.Reader) (map[string]string, error) {
	full, err := p.v.resolve(name)
	if err != nil {
		return nil, err
	}
	if i, err := p.c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: full}); err == nil &&
		i.File.Type == wire.FileSystemFileInfoTypeDirectory {
		return nil, fail(connect.CodeInvalidArgument, "path '"+full+"' is a directory")
	}
	first := full
	if p.v.name != "" {
		if first, err = p.above(ctx, full); err != nil {
			return nil, err
		}
	}
	if err := p.store(ctx, full, r); err != nil {
		return nil, err
	}
	if err := p.own(ctx, first); err != nil {
		return nil, err
	}
	return map[string]string{"path": full, "name": path.Base(full), "type": "file"}, nil
}

// store copies r to a file.
func (p *place) store(ctx context.Context, name string, r io.Reader) error {
	id := p.c.NewStream()
	s, err := p.c.Sender(id)
	if err != nil {
		return err
	}
	defer s.Abort(nil)
	src := &source{r: r}
	go func() { // ends with the body, which net/http closes after the request
		_, err := io.CopyBuffer(struct{ io.Writer }{s}, struct{ io.Reader }{src}, make([]byte, wire.SendChunk))
		if err == nil {
			err = s.Close()
		}
		s.Abort(err)
	}()
	_, err = p.c.FileSystemWrite(ctx, &wire.FileSystemWriteParams{Path: name, Stream: id, Parents: true})
	switch {
	case err == nil:
		return nil
	case src.failed.Load(): // the agent saw only the consequence
		return fail(connect.CodeInvalidArgument, "the content is cut off or malformed")
	case kindOf(err) == turnstone.KindExhausted:
		return fail(connect.CodeResourceExhausted, "not enough disk space available")
	}
	return err
}

// A source remembers whether it failed.
type source struct {
	r      io.Reader
	failed atomic.Bool
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed.Store(true)
	}
	return n, err
}
