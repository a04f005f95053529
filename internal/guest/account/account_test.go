package account

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

func TestLookupUser(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/bash\nbad line\na:x:no:1::/:\n" +
			"ana:x:1000:1000::/home/ana:/bin/zsh\nlow:x:1001:100:::\n",
		"group": "root:x:0:\nana:x:1000:\naudio:x:29:ana,low\nvideo:x:44:low\n" +
			"more:x:50:anna,ana\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]*Account{
		"ana":       {1000, 1000, []uint32{29, 50}, "ana", "/home/ana", "/bin/zsh"},
		"1000":      {1000, 1000, []uint32{29, 50}, "ana", "/home/ana", "/bin/zsh"},
		"low":       {1001, 100, []uint32{29, 44}, "low", "/", "/bin/sh"},
		"ana:video": {1000, 44, nil, "ana", "/home/ana", "/bin/zsh"},
		"ana:7":     {1000, 7, nil, "ana", "/home/ana", "/bin/zsh"},
		"77":        {77, 77, nil, "", "/", "/bin/sh"},
		"a":         nil, "": nil, ":": nil, "ana:": nil, "ana:no": nil, "-1": nil,
		"4294967295": nil,
	} {
		got, err := Lookup(below(root), text)
		if want == nil && err != nil {
			continue
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %v, want %+v", text, got, err, want)
		}
	}
}

// FuzzAccounts: for any accounts of a guest, a number stays the requested number.
func FuzzAccounts(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/bash\n", "root:x:0:a,b\n", "root")
	f.Add("a:b:1:2:c:d:e\na:b:1:2:c:d:e", "g:x:5:a", "a:g")
	f.Fuzz(func(t *testing.T, passwd, group, user string) {
		root := t.TempDir()
		_ = os.Mkdir(filepath.Join(root, "etc"), 0o755)
		_ = os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(passwd), 0o644)
		_ = os.WriteFile(filepath.Join(root, "etc/group"), []byte(group), 0o644)
		a, err := Lookup(below(root), user)
		if (a == nil) == (err == nil) && a == nil {
			t.Fatal("neither a user nor an error")
		}
		name, _, _ := strings.Cut(user, ":")
		if n, numErr := parseID(name); err == nil && numErr == nil && a.UID != n && a.Name != name {
			t.Errorf("%q became %d", user, a.UID)
		}
		if a != nil && (len(a.Groups) > 64 || a.UID == 1<<32-1) {
			t.Errorf("%+v", a)
		}
	})
}

func below(root string) Opener {
	return func(path string, flags int) (int, error) {
		return syscall.Open(filepath.Join(root, path), flags|syscall.O_CLOEXEC, 0)
	}
}
