package keyring

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/seal"
)

func record() *Record {
	return &Record{Version: 1, ID: idOf(seal.NewKey()), Created: time.Unix(1e9, 0).UTC(),
		Wrappings: []Wrapping{{Kind: KindFile, Name: "age1x", Data: []byte("data")},
			{Kind: KindRecovery, Name: "age1y", Data: []byte("data")}}}
}

func TestRecordRefuses(t *testing.T) {
	r := record()
	b, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if _, err := decodeRecord(r.ID, b); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"empty": "", "cut": text[:len(text)-5], "tail": text + " ", "twice": text + text,
		"unknown field":  strings.Replace(text, `{"version"`, `{"x":1,"version"`, 1),
		"duplicate":      strings.Replace(text, `{"version":1`, `{"version":1,"version":1`, 1),
		"case":           strings.Replace(text, `"version"`, `"Version"`, 1),
		"unknown kind":   strings.Replace(text, `"file"`, `"fire"`, 1),
		"same kind":      strings.Replace(text, `"recovery"`, `"file"`, 1),
		"no name":        strings.Replace(text, `"age1x"`, `""`, 1),
		"name":           strings.Replace(text, `"age1x"`, `"age1\n"`, 1),
		"no data":        strings.Replace(text, `"ZGF0YQ=="`, `""`, 1),
		"time":           strings.Replace(text, `01:46:40Z`, `01:46:40.5Z`, 1),
		"zone":           strings.Replace(text, `01:46:40Z`, `01:46:40+00:00`, 1),
		"other domain":   strings.Replace(text, r.ID.String(), idOf(seal.NewKey()).String(), 1),
		"no domain":      strings.Replace(text, r.ID.String(), ID{}.String(), 1),
		"upper case":     strings.Replace(text, r.ID.String(), strings.ToUpper(r.ID.String()), 1),
		"large":          text + strings.Repeat(" ", maxRecord),
		"version 0":      strings.Replace(text, `"version":1`, `"version":0`, 1),
		"no wrapping":    text[:strings.Index(text, "[")] + "[]}\n",
		"null wrappings": text[:strings.Index(text, "[")] + "null}\n",
	} {
		if bad == text {
			t.Errorf("%s: changes nothing", name)
		}
		if _, err := decodeRecord(r.ID, []byte(bad)); turnstone.KindOf(err) != turnstone.KindIntegrity ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	newer := strings.Replace(text, `"version":1`, `"version":2`, 1)
	if _, err := decodeRecord(r.ID, []byte(newer)); turnstone.KindOf(err) !=
		turnstone.KindUnavailable {
		t.Errorf("a newer version: %v", err)
	}
}

func FuzzRecord(f *testing.F) {
	r := record()
	b, err := r.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeRecord(r.ID, b)
		if err != nil {
			return
		}
		again, err := got.encode()
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%q is read as %q, %v", b, again, err)
		}
	})
}

func FuzzID(f *testing.F) {
	f.Add(ID{1}.String())
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := seal.ParseID(text); err == nil && id.String() != text {
			t.Errorf("%q is read as %s", text, id)
		}
	})
}

// TestReplaceIsExclusive: a record that another process has changed or removed stays so.
func TestReplaceIsExclusive(t *testing.T) {
	table := NewTable(&statedir.Dir{Root: t.TempDir()})
	old := record()
	ctx := t.Context()
	if err := table.Add(ctx, old, nil); err != nil {
		t.Fatal(err)
	}
	if err := table.Add(ctx, old, nil); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("added twice: %v", err)
	}
	one := old.with(old.Wrappings[:1])
	if ok, err := table.Replace(ctx, old, one, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if ok, err := table.Replace(ctx, old, old, nil); ok || err != nil {
		t.Errorf("a changed record was replaced: %v, %v", ok, err)
	}
	if err := table.Remove(ctx, old.ID); err != nil {
		t.Fatal(err)
	}
	if ok, err := table.Replace(ctx, one, old, nil); ok || err != nil || table.Has(old.ID) {
		t.Errorf("a removed record was written again: %v, %v", ok, err)
	}
}

// TestReadWhileReplaced: a reader sees the old or the new record, although the old one's blocks are
// overwritten.
func TestReadWhileReplaced(t *testing.T) {
	table := NewTable(&statedir.Dir{Root: t.TempDir()})
	old := record()
	if err := table.Add(t.Context(), old, nil); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		now := old
		for n := 0; ctx.Err() == nil && n < 300; n++ {
			next := now.with([]Wrapping{{Kind: KindFile, Name: "age1x", Data: []byte{byte(n), 1}}})
			if ok, err := table.Replace(context.Background(), now, next, nil); !ok || err != nil {
				done <- err
				return
			}
			now = next
		}
		done <- nil
	}()
	defer stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
		if _, err := table.Get(old.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeignFiles: what is no record in the folder is not read, and stays.
func TestForeignFiles(t *testing.T) {
	dir := &statedir.Dir{Root: t.TempDir()}
	table := NewTable(dir)
	r := record()
	if ids, err := table.List(); len(ids) > 0 || err != nil {
		t.Fatalf("without a folder: %v, %v", ids, err)
	}
	if err := table.Add(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README", "x.json", strings.ToUpper(r.ID.String()) + ".json",
		"." + r.ID.String() + ".json.1"} {
		if err := os.WriteFile(dir.Path(Folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if ids, err := table.List(); len(ids) != 1 || ids[0] != r.ID || err != nil {
		t.Errorf("lists %v, %v", ids, err)
	}
	link := idOf(seal.NewKey())
	if err := os.Symlink(table.path(r.ID), table.path(link)); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Get(link); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a link: %v", err)
	}
}
