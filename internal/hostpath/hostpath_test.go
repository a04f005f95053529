package hostpath_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/hostpath"
)

const home = "/home/alice/.local/share/turnstone"

// TestText: the state directory has its name, wherever it is in a text, and what only looks like it
// stays.
func TestText(t *testing.T) {
	h := hostpath.New(home+"/tenants/acme", home, "", "relative")
	for in, want := range map[string]string{
		"":                                    "",
		home:                                  "$TURN_HOME",
		"open " + home + "/slots/1: denied":   "open $TURN_HOME/slots/1: denied",
		home + "/a and " + home + "/b":        "$TURN_HOME/a and $TURN_HOME/b",
		"(" + home + "), '" + home + "'":      "($TURN_HOME), '$TURN_HOME'",
		"in " + home + ".":                    "in $TURN_HOME.",
		"in " + home + "/tenants/acme/x":      "in $TURN_HOME/x",
		"in " + home + "/tenants/acme-2/x":    "in $TURN_HOME/tenants/acme-2/x",
		home + "-old/x":                       home + "-old/x",
		home + ".bak":                         home + ".bak",
		"/mnt" + home + "/x":                  "/mnt" + home + "/x",
		"/root/.profile: /tmp/x and /usr/x":   "/root/.profile: /tmp/x and /usr/x",
		home + "-old/x and " + home + "/x":    home + "-old/x and $TURN_HOME/x",
		"file://" + home + "/x is no address": "file://" + home + "/x is no address",
	} {
		if got := h.Text(in); got != want {
			t.Errorf("%q became %q, not %q", in, got, want)
		}
	}
	var none *hostpath.Hider
	if none.Text(home) != home || none.Error(fs.ErrExist) != fs.ErrExist {
		t.Error("no Hider hides")
	}
}

// TestLink: the directory behind a link is hidden, too.
func TestLink(t *testing.T) {
	real, link := filepath.Join(t.TempDir(), "real"), filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Mkdir(real, 0o700), os.Symlink(real, link)); err != nil {
		t.Fatal(err)
	}
	if got := hostpath.New(link).Text(link + "/a, " + real + "/b"); got !=
		"$TURN_HOME/a, $TURN_HOME/b" {
		t.Error(got)
	}
}

// TestError: no part of an error names a path of the host, and its kind, its details and errors.Is
// are as before.
func TestError(t *testing.T) {
	h := hostpath.New(home)
	deep := &fs.PathError{Op: "open", Path: "/srv/alice/secret/vmlinux", Err: fs.ErrPermission}
	started := &fs.PathError{Op: "fork/exec /srv/alice/runsc", Path: "/srv/alice/runsc",
		Err: fs.ErrNotExist}
	moved := &os.LinkError{Op: "rename", Old: home + "/tmp/1", New: "/srv/alice/2",
		Err: context.Canceled}
	for _, err := range []error{
		deep, started, moved,
		fmt.Errorf("the kernel: %w", deep),
		errors.Join(deep, started),
		turnstone.NewError("x.y", turnstone.KindUnavailable, home+"/kernel", deep).
			WithHint("look at " + home + " and /srv/alice/secret/vmlinux"),
		turnstone.Errorf("x.y", turnstone.KindExhausted, "the disk", "keep: %w",
			turnstone.NewError("z", turnstone.KindInternal, home, moved)),
		&api.Status{Reason: "proof", Err: turnstone.NewError("x.y", turnstone.KindDenied, "", deep)},
		fmt.Errorf("%w and %w", &api.Status{Err: turnstone.NewError("x.y", turnstone.KindDead,
			home, moved)}, deep),
	} {
		out := h.Error(err)
		for name, text := range map[string]string{"text": out.Error(), "hint": turnstone.HintOf(out),
			"answer": fmt.Sprint(api.ToConnect(out), api.ToConnect(out).Details()),
			"again":  errors.Join(out, errors.New("x")).Error()} {
			if strings.Contains(text, "alice") {
				t.Errorf("%s of %v: %s", name, err, text)
			}
		}
		if turnstone.KindOf(out) != turnstone.KindOf(err) || api.CodeOf(out) != api.CodeOf(err) {
			t.Errorf("%v became %s, %s", err, turnstone.KindOf(out), api.CodeOf(out))
		}
		for _, is := range []error{fs.ErrPermission, fs.ErrNotExist, context.Canceled, err} {
			if errors.Is(err, is) != errors.Is(out, is) {
				t.Errorf("%v: errors.Is(%v) changed", err, is)
			}
		}
		var was, now *api.Status
		if errors.As(err, &was) != errors.As(out, &now) || was != nil && was.Reason != now.Reason {
			t.Errorf("%v became %v", was, now)
		}
		if hostpath.Original(out) != err {
			t.Errorf("the original of %v is %v", err, hostpath.Original(out))
		}
	}
	// what names no path of the host stays as it is, with its type
	same := turnstone.Errorf("x.y", turnstone.KindInvalid, "/workspace/a", "no such file: %w",
		&fs.PathError{Op: "open", Path: "a/b", Err: fs.ErrNotExist})
	if h.Error(same) != error(same) || h.Error(nil) != nil {
		t.Error("an error without paths changed")
	}
}
