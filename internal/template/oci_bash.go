package template

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template/debian"
)

// staticBash returns a bash that runs without any library, for images without bash. It is Debian's,
// which apt verifies; it is downloaded once.
func (s *Store) staticBash(ctx context.Context, log io.Writer,
	progress func(string)) ([]byte, error) {
	if b := s.keptBash(); b != nil {
		return b, nil
	}
	lock, err := statedir.Acquire(ctx, filepath.Join(s.dir, "locks", "oci-bash.lock"), nil)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	if b := s.keptBash(); b != nil {
		return b, nil
	}
	progress("the image has no bash: getting Debian's static one (some seconds, only this time)")
	var program []byte
	req := debian.Request{Suite: "bookworm", Variant: "extract",
		Include: []string{bashPackage}, Log: log,
		Mirrors: s.sources.Mirrors()}
	err = debian.Fetch(ctx, req, func(r io.Reader) error {
		for tr := tar.NewReader(r); ; {
			hdr, err := tr.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			if strings.TrimPrefix(path.Clean("/"+hdr.Name), "/") != bashFile ||
				hdr.Typeflag != tar.TypeReg {
				continue
			}
			if hdr.Size > maxBash {
				return fmt.Errorf("%s has %d bytes", bashFile, hdr.Size)
			}
			if program, err = io.ReadAll(tr); err != nil {
				return err
			}
		}
	})
	if err == nil && len(program) == 0 {
		err = fmt.Errorf("package %s of Debian has no /%s", bashPackage, bashFile)
	}
	if err == nil {
		err = s.keepBash(program)
	}
	if err != nil {
		kind := turnstone.KindUnavailable
		var typed *turnstone.Error
		if errors.As(err, &typed) {
			kind = typed.Kind
		}
		return nil, turnstone.Errorf("template.bash", kind, "the image has no bash",
			"steps require bash, and Debian's static bash is not available: %w", err).
			WithHint("use an image with bash, or make sure that Debian's mirror can be reached " +
				"(TURN_DEBIAN_MIRROR)")
	}
	return program, nil
}
