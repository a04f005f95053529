package agent

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"turnstone.dev/turnstone/wire"
)

// forAll makes the folders of a test readable for its other users.
func (h *harness) forAll() {
	h.t.Helper()
	for dir := h.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			h.t.Fatal(err)
		}
	}
}

// TestOwnUser: what names no user is the sandbox's: processes, texts, and who owns files. The account says what HOME,
// USER, LOGNAME and SHELL are, unless somebody has set them.
func TestOwnUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root becomes another user")
	}
	h := newHarness(t)
	h.forAll()
	if err := h.SandboxSetDefaults(t.Context(), &wire.SandboxSetDefaultsParams{Cwd: "/", User: "nobody"}); err != nil {
		t.Fatal(err)
	}
	const who = "echo $(id -un) $HOME $USER $LOGNAME $SHELL"
	const nobody = "nobody /nonexistent nobody nobody /usr/sbin/nologin"
	same := func(what, got, want string) {
		t.Helper()
		if got = strings.TrimSpace(got); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	process := func(env ...string) string {
		out := new(bytes.Buffer)
		if _, err := h.Start(t.Context(), wire.ProcessStartParams{Argv: script(who), Env: env}, wire.Stdio{Out: out, Err: out}); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	text := func(script string, env ...string) string {
		out := new(bytes.Buffer)
		if _, err := h.Execute(t.Context(), wire.ShellExecuteParams{Env: env, Cwd: "/"}, script, wire.Stdio{Out: out, Err: out}, nil); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	same("a process", process(), nobody)
	same("a process with HOME", process("HOME=/h"), strings.Replace(nobody, "/nonexistent", "/h", 1))
	same("a text", text(who), nobody)
	same("a text with USER", text(who, "USER=me"), strings.Replace(nobody, "nobody nobody", "me nobody", 1))
	same("the next text", text(who), strings.Replace(nobody, "nobody nobody", "me nobody", 1))
	same("its export", text("export HOME=/e; "+who), strings.Replace(strings.Replace(nobody, "/nonexistent", "/e", 1), "nobody nobody", "me nobody", 1))
	as := func(user string) string {
		out := new(bytes.Buffer)
		if _, err := h.Execute(t.Context(), wire.ShellExecuteParams{User: user, Cwd: "/"}, who, wire.Stdio{Out: out, Err: out}, nil); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	text("unset HOME USER LOGNAME SHELL")
	same("root", as("root"), "root /root root root /bin/bash")
	same("after root", as(""), nobody)
	same("root again", as("0"), "root /root root root /bin/bash")
	if err := h.SandboxSetDefaults(t.Context(), &wire.SandboxSetDefaultsParams{Cwd: "/", User: "nobody", Env: []string{"HOME=/set"}}); err != nil {
		t.Fatal(err)
	}
	same("a process of a sandbox with HOME", process(), strings.Replace(nobody, "/nonexistent", "/set", 1))
	for _, path := range []string{"/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"} {
		same(path, text("echo x > "+path+"; echo y | tee "+path), "x\ny\ny")
	}
	same("/dev/stderr", text("echo x > /dev/stderr"), "x")
}

// TestOwner: what the agent creates for a client belongs to the sandbox's user; what is there keeps its owner.
func TestOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	for user, want := range map[string]string{"": "0:0", "nobody": "65534:65534", "nobody:daemon": "65534:1", "1234": "1234:1234", "no-such-user": "0:0"} {
		h := newHarness(t)
		h.a.defaults.own(user)
		at := func(name string) string { return filepath.Join(h.dir, "own", name) }
		if err := os.Mkdir(at(""), 0o755); err != nil {
			t.Fatal(err)
		}
		if o := h.a.ownerOf(); o != nil {
			if err := os.Chown(at(""), o.UID, o.GID); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.write(at("there"), "x"); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(at("there"), 7, 8); err != nil {
			t.Fatal(err)
		}
		content := new(bytes.Buffer)
		w := tar.NewWriter(content)
		for _, e := range []tar.Header{{Typeflag: tar.TypeReg, Name: "top/deep/file", Size: 1, Mode: 0o640},
			{Typeflag: tar.TypeDir, Name: "top/dir", Mode: 0o700}, {Typeflag: tar.TypeSymlink, Name: "top/link", Linkname: "/x"}} {
			if err := w.WriteHeader(&e); err != nil {
				t.Fatal(err)
			}
			if e.Size > 0 {
				_, _ = w.Write([]byte("x"))
			}
		}
		_ = w.Close()
		if err := h.Put(t.Context(), at("new/copy")+"/", content); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{h.write(at("file"), "x"), h.write(at("there"), "y"),
			h.FileSystemMkdir(t.Context(), &wire.FileSystemMkdirParams{Path: at("a/b"), Parents: true})} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"file", "a", "a/b", "new", "new/copy", "new/copy/top", "new/copy/top/deep",
			"new/copy/top/deep/file", "new/copy/top/dir", "new/copy/top/link", "there"} {
			st, err := os.Lstat(at(name))
			if err != nil {
				t.Error(err)
				continue
			}
			own := st.Sys().(*syscall.Stat_t)
			want := want
			if name == "there" {
				want = "7:8"
			} else if name == "new/copy/top/link" {
				want = "0:0"
			}
			if got := fmt.Sprintf("%d:%d", own.Uid, own.Gid); got != want {
				t.Errorf("of %q: %s belongs to %s", user, name, got)
			}
		}
	}
}

// TestOwnerOfOthersPlaces: a client's name that leads to a directory of another user, because a process in the sandbox
// has planted a link, gives nothing away there.
func TestOwnerOfOthersPlaces(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	h := newHarness(t)
	h.forAll()
	h.a.defaults.own("nobody")
	own, others := filepath.Join(h.dir, "own"), filepath.Join(h.dir, "others")
	for _, dir := range []string{own, others} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(own, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"dir": others, "file": filepath.Join(others, "written")} {
		if err := os.Symlink(target, filepath.Join(own, name)); err != nil {
			t.Fatal(err)
		}
	}
	content := new(bytes.Buffer)
	w := tar.NewWriter(content)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "copied/deep", Mode: 0o644})
	_ = w.Close()
	archive := content.Bytes()
	for what, err := range map[string]error{
		"write":       h.write(filepath.Join(own, "file"), "x"),
		"write below": h.write(filepath.Join(own, "dir", "below"), "x"),
		"mkdir":       h.FileSystemMkdir(t.Context(), &wire.FileSystemMkdirParams{Path: filepath.Join(own, "dir/made/more"), Parents: true}),
		"unpack":      h.Put(t.Context(), filepath.Join(own, "dir")+"/", bytes.NewReader(archive)),
		"unpack new":  h.Put(t.Context(), filepath.Join(own, "dir/new/")+"/", bytes.NewReader(archive)),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := h.Execute(t.Context(), wire.ShellExecuteParams{User: "nobody", Cwd: filepath.Join(own, "dir/begun")}, "true", wire.Stdio{}, nil); err != nil {
		t.Error(err)
	}
	err := filepath.WalkDir(others, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err == nil && st.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%s belongs to the sandbox's user", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{"written", "below", "made/more", "copied/deep", "new/copied/deep", "begun"} {
		if _, err := os.Lstat(filepath.Join(others, name)); err != nil {
			t.Error(err)
		}
	}
}
