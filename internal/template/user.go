package template

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/erofs/go-erofs"

	"turnstone.dev/turnstone"
)

// noUser returns the error of a spec whose user is missing after the build.
func noUser(user string) error {
	return turnstone.Errorf("template.build", turnstone.KindInvalid, "user "+user,
		"is not in /etc/passwd and /etc/group").
		WithHint("create the user with a command such as useradd -m NAME, or use a number")
}

// accounts returns the names in user that must be in a file, by file. Numbers need no name.
func accounts(user string) map[string]string {
	all := map[string]string{}
	name, group, _ := strings.Cut(user, ":")
	for path, n := range map[string]string{"etc/passwd": name, "etc/group": group} {
		if strings.Trim(n, "0123456789") != "" {
			all[path] = n
		}
	}
	return all
}

// checkUser checks that user is in the built root image.
func checkUser(root, user string) error {
	want := accounts(user)
	if len(want) == 0 {
		return nil
	}
	f, err := os.Open(root)
	if err != nil {
		return err
	}
	defer f.Close()
	fsys, err := erofs.Open(f)
	if err != nil {
		return err
	}
	for path, name := range want {
		b, err := fs.ReadFile(fsys, path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("/%s: %w", path, err)
		}
		if !strings.Contains("\n"+string(b), "\n"+name+":") {
			return noUser(user)
		}
	}
	return nil
}

// userStep is checkUser in the sandbox of a layer, which may have no program but bash; nil if there
// is nothing to check.
func userStep(user string) *LayerStep {
	want := accounts(user)
	if len(want) == 0 {
		return nil
	}
	script := ""
	for path, name := range want {
		script += "found=; while IFS=: read -r name _; do [ \"$name\" !=" + quote([]string{name}) +
			" ] || found=1; done </" + path + "; [ \"$found\" ]\n"
	}
	return &LayerStep{Name: "looking for user " + user, Script: script,
		Failed: func(int, []byte) error { return noUser(user) }}
}
