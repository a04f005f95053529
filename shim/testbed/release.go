package testbed

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// A Release is a containerd that the shim is tested with, beside that of the module tools.
type Release struct {
	Version string
	// Sum is the digest of its module, as in go.sum. The module has those of all that it is built of.
	Sum string
}

// containerd is the module of all Releases.
const containerd = "github.com/containerd/containerd/v2"

// Releases are the newest ones of the earlier minor versions.
var Releases = []Release{
	{"v2.0.14", "h1:f+wIN6XMP+EsDTD8eKc4aCTMxmb184p/ICs0KQYCYBg="},
	{"v2.1.9", "h1:lOQQ3qVEtauZCHKh8S2Xph5fGXFX2uZxMHmaslOZtW0="},
	{"v2.2.9", "h1:ddw9THGOXhcKnHORjkKoXtazPjwtcPwmqk8AVyRpfZw="},
	{"v2.3.7", "h1:7PGbgAVKE4ieQjFPv7+kwAv7f9dCtRpExZwjExHD/Fk="},
}

// Tools builds the release's containerd and ctr once, of the libraries that its own go.sum names, below the
// folder home. It returns their folder, in which the other programs are those of tools, a folder of the
// function Tools.
func (r Release) Tools(ctx context.Context, home, tools string) (string, error) {
	return once(home, []byte(r.Version+r.Sum+tools+tags), func(tmp string) error {
		dir, err := r.download(ctx, tmp)
		if err != nil {
			return err
		}
		if err := buildAll(ctx, dir, tmp, []string{"./cmd/containerd", "./cmd/ctr"}); err != nil {
			return err
		}
		others, err := os.ReadDir(tools)
		if err != nil {
			return err
		}
		for _, o := range others {
			to := filepath.Join(tmp, o.Name())
			if _, err := os.Lstat(to); err == nil { // the release's own
				continue
			}
			if err := os.Symlink(filepath.Join(tools, o.Name()), to); err != nil {
				return err
			}
		}
		return nil
	})
}

// download returns the folder of the module in Go's cache. It runs the go command in a folder that is in no
// other module.
func (r Release) download(ctx context.Context, empty string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", containerd+"@"+r.Version)
	cmd.Dir = empty
	out, err := cmd.Output()
	var m struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &m); err == nil {
		err = jsonErr
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("downloading containerd %s: %w: %s", r.Version, err, m.Error)
	case m.Sum != r.Sum:
		return "", fmt.Errorf("containerd %s has the digest %s, not %s", r.Version, m.Sum, r.Sum)
	}
	return m.Dir, nil
}
