package registry

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/wheel"
)

// A Wheel is a file of pip's index whose programs belong into an image.
type Wheel struct {
	File   string `toml:"file" json:"file"`     // its name in the index
	SHA256 string `toml:"sha256" json:"sha256"` // hex, lower case
}

// A Program is a program of a wheel.
type Program = wheel.Program

// maxWheels bounds a list of wheels.
const maxWheels = 32

// CheckWheels returns list sorted, each wheel once, or the reason why list is invalid.
func CheckWheels(list []Wheel) ([]Wheel, error) {
	if len(list) > maxWheels {
		return nil, fmt.Errorf("more than %d", maxWheels)
	}
	for _, w := range list {
		if _, err := wheel.ParseName(w.File); err != nil {
			return nil, err
		}
		if raw, err := hex.DecodeString(w.SHA256); err != nil || len(raw) != 32 ||
			strings.ToLower(w.SHA256) != w.SHA256 {
			return nil, fmt.Errorf("%s: sha256: want the file's SHA-256, 64 lower-case hex digits",
				w.File)
		}
	}
	out := slices.Clone(list)
	slices.SortFunc(out, func(a, b Wheel) int {
		return strings.Compare(a.File+"\n"+a.SHA256, b.File+"\n"+b.SHA256)
	})
	return slices.Compact(out), nil
}

// Versions returns the version of each project in list, by its name in the index.
func Versions(list []Wheel) map[string]string {
	all := map[string]string{}
	for _, w := range list {
		if n, err := wheel.ParseName(w.File); err == nil {
			all[normalize(n.Project)] = n.Version
		}
	}
	return all
}

// Programs fetches the wheels in list from pip's index and returns their programs. Only the digests
// in list decide which files are accepted; a lock does not apply. Errors are *turnstone.Error.
func (s *Server) Programs(ctx context.Context, list []Wheel) ([]Program, error) {
	var all []Program
	from := map[string]string{}
	for _, w := range list {
		programs, err := s.programs(ctx, w)
		if err != nil {
			return nil, err
		}
		for _, p := range programs {
			if other := from[p.Name]; other != "" {
				return nil, turnstone.Errorf("registry.wheel", turnstone.KindInvalid, w.File,
					"program %s is also in %s", p.Name, other).WithHint("name one of the wheels")
			}
			from[p.Name] = w.File
		}
		all = append(all, programs...)
	}
	return all, nil
}

func (s *Server) programs(ctx context.Context, w Wheel) ([]Program, error) {
	failed := func(kind turnstone.Kind, err error) error {
		return turnstone.NewError("registry.wheel", kind, w.File, err).
			WithHint("compare the file's name and SHA-256 with those in the index")
	}
	name, err := wheel.ParseName(w.File)
	if err != nil {
		return nil, failed(turnstone.KindInvalid, err)
	}
	at, err := s.wheelFile(ctx, normalize(name.Project), w)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(at)
	if err != nil {
		return nil, storeError(at, err)
	}
	defer f.Close()
	d := want("sha256:" + w.SHA256)
	h := d.hash()
	size, err := io.Copy(h, io.LimitReader(f, wheel.MaxSize+1))
	switch {
	case err != nil:
		return nil, storeError(at, err)
	case size > wheel.MaxSize:
		return nil, failed(turnstone.KindInvalid, fmt.Errorf("has more than %d bytes",
			int64(wheel.MaxSize)))
	case d.of(h) != d: // it has changed since it was fetched
		return nil, failed(turnstone.KindIntegrity, errors.New("is damaged in the cache"))
	}
	programs, err := wheel.Programs(f, size, name)
	if err != nil {
		return nil, failed(turnstone.KindInvalid, err)
	}
	return programs, nil
}

// wheelFile returns the path of the wheel in the cache. The index is asked only for a wheel that the
// cache lacks.
func (s *Server) wheelFile(ctx context.Context, project string, w Wheel) (string, error) {
	d := want("sha256:" + w.SHA256)
	if at := filepath.Join(s.opts.Cache, d.key()); cached(at, d) {
		return at, nil
	}
	if !s.read(ctx) {
		return "", ctx.Err()
	}
	files, err := s.pipFiles(ctx, project)
	s.done()
	if err != nil {
		return "", err
	}
	for _, f := range files {
		switch {
		case f.file != w.File:
		case f.sha256 != "" && f.sha256 != w.SHA256:
			return "", turnstone.Errorf("registry.wheel", turnstone.KindIntegrity, w.File,
				"the index at %s has the SHA-256 %s, not %s", s.pip.Host, f.sha256, w.SHA256).
				WithHint("compare the file's SHA-256 with the project's own")
		default:
			return s.file(ctx, f.address, d.key(), d)
		}
	}
	return "", turnstone.Errorf("registry.wheel", turnstone.KindNotFound, w.File,
		"is not in the index at %s", s.pip.Host).
		WithHint("compare the file's name with those in the index; PIP_INDEX_URL names another")
}
