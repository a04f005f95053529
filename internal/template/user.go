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

// noUser is the error of a spec whose user is not there when all else was done.
func noUser(user string) error {
	return turnstone.Errorf("template.build", turnstone.KindInvalid, "user "+user,
		"is not in /etc/passwd and /etc/group").
		WithHint("a command can make one, as useradd -m NAME; a number needs no name")
}

// accounts are the names in user that have to be in a file, by file. Numbers need no name.
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

// checkUser looks for user in a root image that was built.
func checkUser(root, user string) error {
	want := accounts(user)
	if len(want) == 0 {
		return nil
	}
	f, err := os.Open(root)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
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

// userStep is checkUser in the sandbox of a layer, which may have nothing but a bash;
// nil when there is nothing to look for.
func userStep(user string) *LayerStep {
	want := accounts(user)
	if len(want) == 0 {
		return nil
	}
	script := ""
	for path, name := range want {
		script += "found=; while IFS=: read -r name _; do [ \"$name\" !=" + quote([]string{name}) + " ] || found=1; done </" + path + "; [ \"$found\" ]\n"
	}
	return &LayerStep{Name: "looking for user " + user, Script: script, Failed: func(int, []byte) error { return noUser(user) }}
}
