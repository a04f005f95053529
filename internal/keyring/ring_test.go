package keyring_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/keyring/agewrap"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/seal"
)

// open returns a ring with the file keyring of a state directory.
func open(t *testing.T, dir *statedir.Dir, change ...func(*keyring.Options)) *keyring.Ring {
	t.Helper()
	o := keyring.Options{Dir: dir, Primary: keyring.KindFile, Wrappers: map[keyring.Kind]keyring.Wrapper{
		keyring.KindFile: agewrap.NewFile(dir, nil, nil)}}
	for _, f := range change {
		f(&o)
	}
	r, err := keyring.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func stateDir(t *testing.T) *statedir.Dir {
	t.Helper()
	d, err := statedir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// create makes a domain and returns its ID and its key's bytes.
func create(t *testing.T, r *keyring.Ring) (keyring.ID, []byte) {
	t.Helper()
	o, err := r.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	return o.ID(), o.Key().Bytes()
}

// same reports a domain that does not open to a key.
func same(t *testing.T, r *keyring.Ring, id keyring.ID, key []byte) {
	t.Helper()
	o, err := r.Open(t.Context(), id)
	if err != nil {
		t.Error(err)
		return
	}
	defer o.Close()
	if !bytes.Equal(o.Key().Bytes(), key) {
		t.Errorf("%s has another key", id)
	}
}

// rewrap wraps all keys again, and returns how many changed.
func rewrap(t *testing.T, r *keyring.Ring) (changed int) {
	t.Helper()
	err := r.Rewrap(t.Context(), func(id keyring.ID, is bool, err error) error {
		if is {
			changed++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// counting counts the unwrappings of a wrapper, and waits in each for the channel wait, if there is one.
type counting struct {
	keyring.Wrapper
	unwraps atomic.Int64
	wait    chan struct{}
	fail    atomic.Pointer[error]
}

func (c *counting) Unwrap(ctx context.Context, id keyring.ID, w keyring.Wrapping) (keyring.Secret,
	error) {
	c.unwraps.Add(1)
	if c.wait != nil {
		select {
		case <-c.wait:
		case <-ctx.Done():
			return nil, turnstone.NewError("test", turnstone.KindTimeout, "", ctx.Err())
		}
	}
	if err := c.fail.Load(); err != nil {
		return nil, *err
	}
	return c.Wrapper.Unwrap(ctx, id, w)
}

func TestCreateAndOpen(t *testing.T) {
	dir := stateDir(t)
	first := open(t, dir)
	id, key := create(t, first)
	same(t, first, id, key)
	same(t, open(t, dir), id, key) // as another process
	if _, other := create(t, first); bytes.Equal(key, other) {
		t.Error("two domains have the same key")
	}
	var none keyring.ID
	_, err := first.Open(t.Context(), none)
	if !errors.Is(err, keyring.ErrShredded) || turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("a domain without a record: %v", err)
	}
}

// TestKeysDoNotShow: no text about a domain has its key, on disk or in memory.
func TestKeysDoNotShow(t *testing.T) {
	dir := stateDir(t)
	r := open(t, dir)
	o, err := r.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	key := o.Key().Bytes()
	var text bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&text, nil))
	for _, v := range []any{r, o, *r.Table(), o.Key(), keyring.Secret(key), &struct {
		K keyring.Key
		k keyring.Key
		s keyring.Secret
	}{o.Key(), o.Key(), nil}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
			fmt.Fprintf(&text, verb+"\n", v)
		}
		b, _ := json.Marshal(v)
		text.Write(b)
		log.Info("x", "v", v)
	}
	err = filepath.WalkDir(dir.Root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var b []byte
			b, err = os.ReadFile(path)
			text.Write(b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	shows(t, text.Bytes(), key)
}

// shows reports a text with a key in it, in one of the forms in which programs print bytes.
func shows(t *testing.T, text, key []byte) {
	t.Helper()
	part := key[4:20]
	for _, form := range [][]byte{part, []byte(fmt.Sprintf("%x", part)), []byte(fmt.Sprintf("%X", part)),
		bytes.Trim([]byte(fmt.Sprintf("%d", part)), "[]"),
		bytes.TrimSuffix(bytes.TrimPrefix([]byte(fmt.Sprintf("%#v", part)), []byte("[]byte{")), []byte("}"))} {
		if bytes.Contains(text, form) {
			t.Errorf("a key shows as %.20q in %.2000q", form, text)
		}
	}
	for shift := range 3 { // base64 of whole groups of three bytes, at any place
		b, _ := json.Marshal(key[3+shift : 18+shift])
		if b = bytes.Trim(b, `"`); bytes.Contains(text, b) {
			t.Errorf("a key shows as base64 %q", b)
		}
	}
}

// TestOneUnwrappingForMany: callers at the same time wait for one unwrapping, and one that gives up
// ends nothing for the others.
func TestOneUnwrappingForMany(t *testing.T) {
	dir := stateDir(t)
	id, key := create(t, open(t, dir))
	c := &counting{Wrapper: agewrap.NewFile(dir, nil, nil), wait: make(chan struct{})}
	r := open(t, dir, func(o *keyring.Options) { o.Wrappers[keyring.KindFile] = c })
	gaveUp, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := r.Open(gaveUp, id) // the first, whose flight the others join
		failed <- err
	}()
	for c.unwraps.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { same(t, r, id, key) })
	}
	cancel()
	if err := <-failed; turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Errorf("a caller that gave up: %v", err)
	}
	close(c.wait)
	all.Wait()
	if n := c.unwraps.Load(); n > 2 { // 2: the cancelled caller's flight may end before others begin
		t.Errorf("%d unwrappings", n)
	}
}

// TestMemoryIsErased: a key that is forgotten is overwritten at the end of its last use.
func TestMemoryIsErased(t *testing.T) {
	zero := make([]byte, seal.KeySize)
	r := open(t, stateDir(t), func(o *keyring.Options) { o.Keys = 2 })
	id, _ := create(t, r)
	o, err := r.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	key := o.Key()
	r.Forget(id)
	if bytes.Equal(key.Bytes(), zero) {
		t.Error("a key in use was erased")
	}
	o.Close()
	o.Close()
	if !bytes.Equal(key.Bytes(), zero) {
		t.Error("a forgotten key is in memory")
	}
	// More domains than the bound: the one that was used the longest time ago goes.
	o, err = r.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	key = o.Key()
	o.Close()
	create(t, r)
	create(t, r)
	if !bytes.Equal(key.Bytes(), zero) {
		t.Error("more keys than the bound are in memory")
	}
	o, err = r.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	key = o.Key()
	o.Close()
	r.Close()
	if !bytes.Equal(key.Bytes(), zero) {
		t.Error("a key is in memory after Close")
	}
	if _, err := r.Open(t.Context(), id); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a closed ring: %v", err)
	}
}

// TestKeptForAWhile: a key that is in memory opens without its wrapper, until the time is over.
func TestKeptForAWhile(t *testing.T) {
	dir := stateDir(t)
	synctest.Test(t, func(t *testing.T) {
		c := &counting{Wrapper: agewrap.NewFile(dir, nil, nil)}
		r := open(t, dir, func(o *keyring.Options) {
			o.Wrappers[keyring.KindFile], o.Keep = c, time.Hour
		})
		id, key := create(t, r)
		away := error(turnstone.Errorf("test", turnstone.KindUnavailable, "KMS", "is away").
			WithHint("wait"))
		c.fail.Store(&away)
		time.Sleep(59 * time.Minute)
		same(t, r, id, key)
		time.Sleep(2 * time.Minute)
		_, err := r.Open(t.Context(), id)
		if turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) != "wait" ||
			!errors.Is(err, away) {
			t.Errorf("after the time: %v", err)
		}
		c.fail.Store(nil)
		same(t, r, id, key)
		r.Close()
	})
}

// TestRecordsAreNotExchanged: the wrapped key of one domain is not that of another.
func TestRecordsAreNotExchanged(t *testing.T) {
	dir := stateDir(t)
	r := open(t, dir)
	a, _ := create(t, r)
	b, _ := create(t, r)
	recA, err := r.Table().Get(a)
	if err != nil {
		t.Fatal(err)
	}
	recB, err := r.Table().Get(b)
	if err != nil {
		t.Fatal(err)
	}
	swapped := *recB
	swapped.Wrappings = recA.Wrappings
	if ok, err := r.Table().Replace(t.Context(), recB, &swapped, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := open(t, dir).Open(t.Context(), b); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("the key of another domain: %v", err)
	}
}

func TestShred(t *testing.T) {
	dir := stateDir(t)
	r, other := open(t, dir), open(t, dir)
	id, key := create(t, r)
	same(t, other, id, key)
	path := dir.Path(keyring.Folder, id.String()+".json")
	f, err := os.Open(path) // the blocks of the file, after it has no name
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	// left by a process that was killed while it wrote the record
	left := dir.Path(keyring.Folder, "."+id.String()+".json.123")
	if err := os.WriteFile(left, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	keeps, kept := create(t, r)
	if err := r.Shred(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<16)
	n, _ := f.Read(b)
	if n == 0 || len(bytes.Trim(b[:n], "\x00")) > 0 {
		t.Errorf("the record was not overwritten: %q", b[:n])
	}
	for _, p := range []string{path, left} {
		if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", p, err)
		}
	}
	for name, ring := range map[string]*keyring.Ring{"here": r, "another process": other} {
		if _, err := ring.Open(t.Context(), id); !errors.Is(err, keyring.ErrShredded) {
			t.Errorf("%s: a shredded domain opens: %v", name, err)
		}
	}
	same(t, other, keeps, kept)
	if err := r.Shred(t.Context(), id); err != nil {
		t.Errorf("again: %v", err)
	}
}
