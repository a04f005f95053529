package agewrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/statedir"
)

var (
	someID = keyring.ID{1, 2, 3}
	marker = []byte("MARKERMARKERMARKERMARKERMARKER!!")
)

func stateDir(t testing.TB) *statedir.Dir {
	t.Helper()
	d, err := statedir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func wrap(t testing.TB, w keyring.Wrapper) keyring.Wrapping {
	t.Helper()
	got, err := w.Wrap(t.Context(), someID, bytes.Clone(marker))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(got.Data, marker[:8]) {
		t.Fatal("the secret is not encrypted")
	}
	if newest, err := w.Newest(t.Context()); err != nil || newest != got.Name {
		t.Fatalf("newest is %q, %v; wrapped by %q", newest, err, got.Name)
	}
	return got
}

func unwraps(t testing.TB, w keyring.Wrapper, one keyring.Wrapping) {
	t.Helper()
	if s, err := w.Unwrap(t.Context(), someID, one); err != nil || !bytes.Equal(s, marker) {
		t.Errorf("unwraps to %d bytes, %v", len(s), err)
	}
}

func TestFile(t *testing.T) {
	dir := stateDir(t)
	f := NewFile(dir, nil, nil)
	if name, err := f.Newest(t.Context()); err != nil || name != "none" {
		t.Errorf("newest of no file: %q, %v", name, err)
	}
	if _, err := os.Stat(f.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Newest made the file: %v", err)
	}
	one := wrap(t, f)
	if info, err := os.Stat(f.Path()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	other := NewFile(dir, nil, nil) // another process
	unwraps(t, other, one)
	name, err := f.Rotate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	two := wrap(t, other)
	if two.Name != name || two.Name == one.Name {
		t.Errorf("wrapped by %s after a rotation to %s", two.Name, name)
	}
	unwraps(t, other, one)
	gone, err := f.Prune(t.Context(), name)
	if err != nil || len(gone) != 1 || gone[0] != one.Name {
		t.Errorf("pruned %v, %v", gone, err)
	}
	unwraps(t, other, two)
	if _, err := other.Unwrap(t.Context(), someID, one); turnstone.KindOf(err) !=
		turnstone.KindNotFound || !strings.Contains(err.Error(), one.Name) {
		t.Errorf("a pruned identity: %v", err)
	}
	if has, err := other.Has(one.Name); has || err != nil {
		t.Errorf("has a pruned identity: %v", err)
	}
	// age's own tools read the file
	text, err := os.ReadFile(f.Path())
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := age.ParseIdentities(bytes.NewReader(text)); err != nil || len(ids) != 1 {
		t.Errorf("age reads %d identities, %v", len(ids), err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d"} {
		if s := fmt.Sprintf(verb, f); strings.Contains(strings.ToUpper(s), "SECRET") {
			t.Errorf("prints %s", s)
		}
	}
}

// TestFileIsPrivate: a keyring that others could have read or written is an error at once, that
// says what to do.
func TestFileIsPrivate(t *testing.T) {
	dir := stateDir(t)
	one := wrap(t, NewFile(dir, nil, nil))
	path := dir.Path("keys", "rest")
	fails := func(kind turnstone.Kind, want string) {
		t.Helper()
		f := NewFile(dir, nil, nil)
		for _, err := range []error{
			func() error { _, err := f.Unwrap(t.Context(), someID, one); return err }(),
			func() error { _, err := f.Wrap(t.Context(), someID, marker); return err }(),
			func() error { _, err := f.Rotate(t.Context()); return err }(),
		} {
			if turnstone.KindOf(err) != kind || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
			if err != nil && strings.Contains(strings.ToUpper(err.Error()), "SECRET-KEY") {
				t.Errorf("the error has the identity: %v", err)
			}
		}
	}
	for mode, want := range map[os.FileMode]string{0o640: "mode 0640: other users can read",
		0o604: "mode 0604", 0o602: "mode 0602", 0o666: "mode 0666"} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		fails(turnstone.KindInvalid, want)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 4242, -1); err != nil {
			t.Fatal(err)
		}
		fails(turnstone.KindInvalid, "belongs to another user")
		if err := os.Chown(path, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "# nothing\n", string(text[:len(text)-5]), "AGE-SECRET-KEY-1X\n",
		strings.Repeat("\x00", len(text)), "-----BEGIN AGE ENCRYPTED FILE-----\n"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		fails(turnstone.KindInvalid, "rest")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", path); err != nil {
		t.Fatal(err)
	}
	fails(turnstone.KindInvalid, "symbolic link")
}

// TestLost: a keyring that is missing is not made anew where it wraps keys.
func TestLost(t *testing.T) {
	dir := stateDir(t)
	f := NewFile(dir, nil, func() error { return Lost("keys/rest") })
	if _, err := f.Wrap(t.Context(), someID, marker); turnstone.KindOf(err) != turnstone.KindNotFound ||
		turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(f.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a lost keyring was made: %v", err)
	}
	if _, err := f.Rotate(t.Context()); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("a rotation: %v", err)
	}
	if _, err := os.Stat(f.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a rotation made a lost keyring: %v", err)
	}
	if err := f.Renew(t.Context()); err != nil { // an explicit wish
		t.Fatal(err)
	}
	wrap(t, f)
}

// TestFirstUse: processes that need the keyring at the same time make one.
func TestFirstUse(t *testing.T) {
	dir := stateDir(t)
	var all sync.WaitGroup
	wrapped := make(chan keyring.Wrapping, 20)
	for range cap(wrapped) {
		all.Go(func() { wrapped <- wrap(t, NewFile(dir, nil, nil)) })
	}
	all.Wait()
	close(wrapped)
	first := <-wrapped
	for w := range wrapped {
		if w.Name != first.Name {
			t.Errorf("two keyrings: %s and %s", w.Name, first.Name)
		}
	}
}

func TestPassphrase(t *testing.T) {
	dir := stateDir(t)
	pass := "correct horse"
	asked := 0
	ask := func(string) ([]byte, error) {
		asked++
		return []byte(pass), nil
	}
	f := NewFile(dir, ask, nil)
	f.work = 10 // age's default takes seconds with the race detector
	one := wrap(t, f)
	if err := f.SetPassphrase(t.Context(), []byte(pass)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(f.Path())
	if err != nil || strings.Contains(string(text), "SECRET-KEY") ||
		!strings.HasPrefix(string(text), "-----BEGIN AGE ENCRYPTED FILE-----") {
		t.Fatalf("%.60s, %v", text, err)
	}
	if _, err := NewFile(dir, nil, nil).Unwrap(t.Context(), someID, one); turnstone.KindOf(err) !=
		turnstone.KindInvalid || !strings.Contains(err.Error(), "needs a passphrase") {
		t.Errorf("without a passphrase: %v", err)
	}
	f = NewFile(dir, ask, nil)
	f.work = 10
	asked = 0
	unwraps(t, f, one)
	unwraps(t, f, one)
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	if _, err := f.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	two := wrap(t, NewFile(dir, ask, nil))
	if text, _ = os.ReadFile(f.Path()); strings.Contains(string(text), "SECRET-KEY") {
		t.Error("a rotation removed the passphrase")
	}
	pass = "wrong"
	if _, err := NewFile(dir, ask, nil).Unwrap(t.Context(), someID, one); turnstone.KindOf(err) !=
		turnstone.KindInvalid || strings.Contains(err.Error(), pass) {
		t.Errorf("a wrong passphrase: %v", err)
	}
	pass = "correct horse"
	if err := f.SetPassphrase(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	unwraps(t, NewFile(dir, nil, nil), one)
	unwraps(t, NewFile(dir, nil, nil), two)
}

// TestDamagedWrapping: each changed byte of a wrapping is an error without text of the secret.
func TestDamagedWrapping(t *testing.T) {
	f := NewFile(stateDir(t), nil, nil)
	one := wrap(t, f)
	for i := range one.Data {
		bad := one
		bad.Data = bytes.Clone(one.Data)
		bad.Data[i] ^= 1
		s, err := f.Unwrap(t.Context(), someID, bad)
		if err == nil && bytes.Equal(s, marker) {
			t.Errorf("byte %d may change", i)
		}
	}
}

func FuzzUnwrap(f *testing.F) {
	w := NewFile(stateDir(f), nil, nil)
	f.Add(wrap(f, w).Data)
	f.Add([]byte("age-encryption.org/v1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = w.Unwrap(context.Background(), someID, keyring.Wrapping{Name: "age1x", Data: data})
	})
}

func TestIdentities(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ids")
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{id.String(), "# x\n\n" + hybrid.String() + "\n" + id.String() + "\n"} {
		write(text)
		w, err := LoadIdentities(path, "", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		unwraps(t, w, wrap(t, w))
		other, err := age.GenerateX25519Identity()
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewRecipients([]string{other.Recipient().String(), id.Recipient().String()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		unwraps(t, w, wrap(t, r))
	}
	write(id.String())
	w, err := LoadIdentities(path, hybrid.Recipient().String(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Unwrap(t.Context(), someID, wrap(t, w)); turnstone.KindOf(err) !=
		turnstone.KindNotFound {
		t.Errorf("a recipient of another identity: %v", err)
	}
	for _, bad := range []string{"", "x", "AGE-PLUGIN-X", id.String() + "\nsecret"} {
		write(bad)
		_, err := LoadIdentities(path, "", nil, nil)
		if turnstone.KindOf(err) != turnstone.KindInvalid || strings.Contains(err.Error(), "secret") ||
			strings.Contains(err.Error(), id.String()) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := NewRecipients([]string{id.Recipient().String(), hybrid.Recipient().String()},
		nil); turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
		t.Errorf("recipients that age does not mix: %v", err)
	}
	for _, bad := range []string{"", "x", id.String(), "age1x", id.Recipient().String() + "\n#"} {
		_, err := NewRecipients([]string{bad}, nil)
		if turnstone.KindOf(err) != turnstone.KindInvalid ||
			bad != "" && strings.Contains(err.Error(), bad) && len(bad) > 10 {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
