package debian

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

func TestExplain(t *testing.T) {
	for _, tt := range []struct {
		tail, want string
		kind       turnstone.Kind
		hint       string
	}{
		{"E: Unable to locate package nosuchthing\nE: mmdebstrap failed to run\n",
			"Unable to locate package nosuchthing", turnstone.KindInvalid, "packages.debian.org"},
		{"W: Failed to fetch http://x/InRelease  Temporary failure resolving 'deb.debian.org'\n" +
			"E: apt-get update failed", "Temporary failure resolving 'deb.debian.org'",
			turnstone.KindUnavailable, "http_proxy"},
		{"dpkg: error: cannot write: No space left on device\nE: x", "No space left on device",
			turnstone.KindExhausted, "TMPDIR"},
		{"W: GPG error: http://x bookworm InRelease: NO_PUBKEY 0E98404D386FA1D9",
			"NO_PUBKEY 0E98404D386FA1D9", turnstone.KindIntegrity, "debian-archive-keyring"},
		{"E: failed to unshare the user namespace\n", "failed to unshare the user namespace",
			turnstone.KindUnavailable, "apparmor_restrict"},
		{"newuidmap: write to uid_map failed: Operation not permitted\nE: x",
			"newuidmap: write to uid_map failed: Operation not permitted",
			turnstone.KindUnavailable, "NoNewPrivileges="},
		{"I: going\nE: something new\nE: mmdebstrap failed to run\n", "something new",
			turnstone.KindUnavailable, ""},
	} {
		err := explain("op", Request{Suite: "bookworm"}, errors.New("exit status 1"), tt.tail)
		if !strings.Contains(err.Error(), tt.want) || turnstone.KindOf(err) != tt.kind ||
			!strings.Contains(turnstone.HintOf(err), tt.hint) {
			t.Errorf("%q: got %v, kind %s, hint %q", tt.tail, err, turnstone.KindOf(err),
				turnstone.HintOf(err))
		}
	}
}

func TestTranscript(t *testing.T) {
	var log strings.Builder
	var told []string
	tr := newTranscript(&log, func(s string) { told = append(told, s) })
	said := "I: running apt-get update...\nGet:1 http://x\nI: installing remaining pack"
	for i := range len(said) {
		if _, err := tr.Write([]byte{said[i]}); err != nil {
			t.Fatal(err)
		}
	}
	tr.Write([]byte("ages inside the chroot...\nI: creating tarball..."))
	tr.flush()
	want := []string{"reading Debian's package lists", "installing the other packages",
		"writing the image"}
	if strings.Join(told, "|") != strings.Join(want, "|") {
		t.Errorf("progress %q, want %q", told, want)
	}
	if !strings.HasPrefix(log.String(), said) {
		t.Errorf("log %q", log.String())
	}
	tr.Write([]byte(strings.Repeat("x", 1<<20)))
	if len(tr.tail()) > tailSize || len(tr.line) > 4096 {
		t.Errorf("a line without end is kept: %d and %d bytes", len(tr.tail()), len(tr.line))
	}
}

func TestHasRange(t *testing.T) {
	for content, want := range map[string]bool{
		"":                               false,
		"ann:100000:65536\n":             true,
		"bob:1:2\nann:100000:65536":      true,
		"annie:100000:65536\n":           false,
		"# ann\nann\n":                   false,
		"1000:100000:65536\nbob:1:65536": false,
	} {
		if got := hasRange(content, "ann"); got != want {
			t.Errorf("%q: %v", content, got)
		}
	}
}

func TestSourcesOfMirrors(t *testing.T) {
	got := strings.Join(Mirrors{Main: "http://mirror.example/debian/"}.Sources("bookworm"), "\n")
	for _, want := range []string{"http://mirror.example/debian bookworm main",
		"http://mirror.example/debian bookworm-updates main", defaultSecurityMirror +
			" bookworm-security main"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestMirrorsAreOneWord(t *testing.T) {
	for _, bad := range []string{"http://x/debian main\ndeb http://y", "http://x y",
		"[trusted=yes]http://x"} {
		if err := (Mirrors{Main: bad}).check(); turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestEnvironment(t *testing.T) {
	private := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", private)
	t.Setenv("SECRET_TOKEN", "x")
	has := func(mode, prefix string) bool {
		return strings.Contains("\n"+strings.Join(environment(mode, ""), "\n"), "\n"+prefix)
	}
	if has("unshare", "TMPDIR=") || !has("root", "TMPDIR="+private) {
		t.Error("a private TMPDIR serves root, and nobody else")
	}
	if has("root", "SECRET_TOKEN") || !has("root", "SOURCE_DATE_EPOCH=1767225600") {
		t.Errorf("%q", environment("root", ""))
	}
	t.Setenv("TMPDIR", "/tmp")
	if !has("unshare", "TMPDIR=/tmp") {
		t.Error("a public TMPDIR is not passed on")
	}
}

// stand replaces mmdebstrap with a shell script.
func stand(t *testing.T, script string) {
	t.Helper()
	if _, err := os.Stat(keyring); err != nil {
		t.Skip("no Debian archive keys on this machine")
	}
	dir := t.TempDir()
	for name, body := range map[string]string{"mmdebstrap": script, "newuidmap": "exit 0"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"),
			0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
}

func TestFetchPassesTheStreamAndItsEnd(t *testing.T) {
	stand(t, "printf hello; echo \"epoch $SOURCE_DATE_EPOCH\" >&2")
	var got []byte
	var log strings.Builder
	err := Fetch(context.Background(), Request{Suite: "bookworm", Variant: "minbase", Log: &log},
		func(r io.Reader) (err error) {
			got, err = io.ReadAll(r)
			return err
		})
	if err != nil || string(got) != "hello" || !strings.Contains(log.String(), "epoch 1767225600") {
		t.Fatalf("%q, %v, log %q", got, err, log.String())
	}
}

func TestFetchFailures(t *testing.T) {
	t.Run("the program fails, and the stream is cut", func(t *testing.T) {
		stand(t, "printf half; echo 'E: Unable to locate package zzz' >&2; exit 25")
		err := Fetch(context.Background(), Request{Suite: "bookworm"}, func(r io.Reader) error {
			_, _ = io.Copy(io.Discard, r)
			return io.ErrUnexpectedEOF
		})
		if turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(err.Error(), "zzz") {
			t.Fatal(err)
		}
	})
	t.Run("the reader fails", func(t *testing.T) {
		stand(t, "exec cat /dev/zero")
		own := errors.New("disk full here")
		start := time.Now()
		err := Fetch(context.Background(), Request{Suite: "bookworm"}, func(r io.Reader) error {
			_, _ = io.CopyN(io.Discard, r, 1<<16)
			return own
		})
		if !errors.Is(err, own) || time.Since(start) > 5*time.Minute {
			t.Fatal(err, time.Since(start))
		}
	})
	t.Run("the caller gives up", func(t *testing.T) {
		stand(t, "trap 'kill $!; exit 1' TERM; sleep 600 & wait")
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond) //wait: it is meant to expire
		defer cancel()
		start := time.Now()
		err := Fetch(ctx, Request{Suite: "bookworm"}, func(r io.Reader) error {
			_, err := io.Copy(io.Discard, r)
			return err
		})
		if turnstone.KindOf(err) != turnstone.KindTimeout || time.Since(start) > 5*time.Minute {
			t.Fatal(err, time.Since(start))
		}
	})
	t.Run("the program is not there", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		if _, err := lookPath("mmdebstrap"); err == nil {
			t.Skip("mmdebstrap is installed where every search looks")
		}
		err := Fetch(context.Background(), Request{}, nil)
		if turnstone.KindOf(err) != turnstone.KindUnavailable ||
			!strings.Contains(turnstone.HintOf(err), "apt install") {
			t.Fatal(err)
		}
	})
}
