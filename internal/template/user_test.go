package template

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/tar2erofs"
)

// TestUserHasToBeThere checks that a missing user is an error of the build, and not of each turn.
func TestUserHasToBeThere(t *testing.T) {
	s, _ := counting(t)
	s.build = func(_ context.Context, _ *Spec, out *os.File, tempDir string, _ io.Writer,
		_ func(string)) (*built, error) {
		w := tar2erofs.New(out, tar2erofs.Options{TempDir: tempDir})
		for name, text := range map[string]string{"etc/passwd": "root:x:0:0::/root:/bin/sh\n" +
			"app:x:7:7::/:/bin/sh\n", "etc/group": "staff:x:50:\n"} {
			if err := w.Add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text))},
				strings.NewReader(text)); err != nil {
				return nil, err
			}
		}
		return &built{}, w.Close()
	}
	for user, there := range map[string]bool{"app": true, "1000": true, "1000:7": true,
		"app:staff": true, "ap": false, "pp": false, "app:app": false, "7:staf": false} {
		_, err := s.Build(t.Context(),
			writeSpec(t, "mine", "base = 'debian:bookworm'\nuser = '"+user+"'\n"), BuildOptions{})
		if there && err != nil || !there && (turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), "is not in /etc/passwd")) {
			t.Errorf("%s: %v", user, err)
		}
	}
}

// TestUserStep checks the same in a sandbox, which may have no program but bash.
func TestUserStep(t *testing.T) {
	for user, there := range map[string]bool{"root": true, "root:root": true, "roo": false,
		"no-such-user": false, "root:no-such-group": false} {
		step := userStep(user)
		err := exec.Command("bash", "-e", "-o", "pipefail", "-c", step.Script).Run()
		if (err == nil) != there {
			t.Errorf("%s: %v", user, err)
		}
	}
	if userStep("") != nil || userStep("1000:1000") != nil {
		t.Error("numbers need no names")
	}
}
