package turnstone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Int64Range(0, 1<<47).Draw(t, "a")
		b := rapid.Int64Range(0, 1<<47).Draw(t, "b")
		x, y := newID(time.UnixMilli(a)), newID(time.UnixMilli(b))
		if a != b && (x < y) != (a < b) {
			t.Fatalf("%s of %d and %s of %d do not sort by time", x, a, y, b)
		}
		if len(x) != 18 {
			t.Fatalf("%s has %d characters", x, len(x))
		}
	})
	var ids []TurnID
	for range 1000 {
		ids = append(ids, NewTurnID())
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 1000 {
		t.Error("two turns have one ID")
	}
	if id := string(NewSandboxID()); !strings.HasPrefix(id, "sb_") {
		t.Errorf("a sandbox is called %s", id)
	}
}

// The vectors are from FIPS 180-2.
func TestDigest(t *testing.T) {
	const abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	d := DigestBytes([]byte("abc"))
	if d != abc || d.Short() != "ba7816bf8f01" {
		t.Errorf("abc: %s, %s", d, d.Short())
	}
	if r, err := DigestReader(strings.NewReader("abc")); err != nil || r != abc {
		t.Errorf("read: %s, %v", r, err)
	}
	if p, err := ParseDigest(abc); err != nil || p != d {
		t.Errorf("parsed: %s, %v", p, err)
	}
	for _, bad := range []string{"", "sha256:", abc[7:], abc + "00", strings.ToUpper(abc),
		"sha256:" + strings.ToUpper(abc[7:]), "md5:" + abc[7:], abc[:70] + "g"} {
		if p, err := ParseDigest(bad); err == nil {
			t.Errorf("%q is taken as %s", bad, p)
		}
	}
	if s := Digest("").Short(); s != "" {
		t.Errorf("no digest is shown as %q", s)
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "1": 1, "512": 512, "1K": 1 << 10, "1k": 1 << 10, "1KB": 1 << 10, "1KiB": 1 << 10,
		"1Ki":    1 << 10,
		"512MiB": 512 << 20, "1.5G": 3 << 29, " 2 GiB": 2 << 30, "2TiB": 2 << 40, "10b": 10,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "-1", "1X", "1KK", "G", "1e999", "NaN", "inf",
		"9223372036854775808", "8388608T", "1 2"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q is taken as %d", text, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := Bytes(rapid.Int64Range(0, 1<<50).Draw(t, "size"))
		if back, err := ParseBytes(b.String()); err != nil || back != b {
			t.Fatalf("%d is written %s and read as %d, %v", b, b, back, err)
		}
	})
}

func FuzzParseBytes(f *testing.F) {
	f.Add("1.5GiB")
	f.Fuzz(func(t *testing.T, s string) {
		if b, err := ParseBytes(s); err == nil && b < 0 {
			t.Fatalf("%q is %d", s, b)
		}
	})
}

func TestErrors(t *testing.T) {
	cause := errors.New("cause")
	inner := &Error{Op: "in", Kind: KindExhausted, Subject: "disk", Hint: "make room", Err: cause}
	outer := fmt.Errorf("while: %w",
		&Error{Op: "out", Kind: KindUnavailable, Subject: "vm", Err: inner})
	if KindOf(outer) != KindUnavailable || HintOf(outer) != "make room" ||
		!errors.Is(outer, cause) {
		t.Errorf("kind %s, hint %q", KindOf(outer), HintOf(outer))
	}
	if got := outer.Error(); got != "while: vm: disk: cause" {
		t.Errorf("reads %q", got)
	}
	if KindOf(cause) != KindInternal || HintOf(cause) != "" || HintOf(nil) != "" {
		t.Error("an error of nobody's has a kind or a hint")
	}
	if got := (&Error{Kind: KindNotFound, Subject: "x"}).Error(); got != "x: not found" {
		t.Errorf("without a cause it reads %q", got)
	}
}

// TestClassify: an end of a context counts before a full disk, which brings its hint.
func TestClassify(t *testing.T) {
	for _, tt := range []struct {
		cause error
		kind  Kind
		hint  string
	}{
		{errors.New("x"), KindDead, ""},
		{fs.ErrNotExist, KindDead, ""},
		{fmt.Errorf("x: %w", context.Canceled), KindCanceled, ""},
		{context.DeadlineExceeded, KindCanceled, ""},
		{&fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, KindExhausted, "make room"},
		{fmt.Errorf("x: %w", syscall.EDQUOT), KindExhausted, "make room"},
		{errors.Join(syscall.ENOSPC, context.Canceled), KindCanceled, ""},
	} {
		e := Classify("a.b", KindDead, "x", tt.cause, "make room")
		if e.Op != "a.b" || e.Subject != "x" || e.Err != tt.cause || e.Kind != tt.kind ||
			e.Hint != tt.hint {
			t.Errorf("%v: %+v", tt.cause, e)
		}
		if full := errors.Is(tt.cause, syscall.ENOSPC) ||
			errors.Is(tt.cause, syscall.EDQUOT); IsFull(tt.cause) != full {
			t.Errorf("%v: a full disk is %t", tt.cause, IsFull(tt.cause))
		}
	}
}

func TestShape(t *testing.T) {
	if err := DefaultShape().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	for name, change := range map[string]func(*Shape){
		"cpus":   func(s *Shape) { s.CPUs = 0 },
		"memory": func(s *Shape) { s.Memory = MinMemory - 1 },
		"disk":   func(s *Shape) { s.Disk = MaxDisk + 1 },
	} {
		s := DefaultShape()
		change(&s)
		if err := s.Validate(); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
