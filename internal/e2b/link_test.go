package e2b_test

import (
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"testing"
)

// TestLinkIsForOneFile: who has a signed link cannot choose another file by the name of a user, whose
// home a relative path would begin in.
func TestLinkIsForOneFile(t *testing.T) {
	s := newScene(t)
	id, token := s.create(t, `{"templateID":"base","timeout":60}`)
	file := filepath.Join(t.TempDir(), "note")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Rel("/tmp", file) // the directory of the sandbox
	if err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(path + ":read::" + token))
	link := "/files?" + url.Values{"path": {path},
		"signature": {"v1_" + base64.RawStdEncoding.EncodeToString(sum[:])}}.Encode()
	named := "Basic " + base64.StdEncoding.EncodeToString([]byte(me.Username+":"))
	for _, at := range [][]string{nil, {"E2b-Sandbox-Id", id}} {
		for _, as := range [][]string{nil, {"Authorization", named}} {
			if status, got, _ := s.do(t, "GET", link, "", append(at, as...)...); status != 200 || got != "mine" {
				t.Errorf("%q: %d %s", append(at, as...), status, got)
			}
		}
		if status, _, _ := s.do(t, "GET", link+"&username="+me.Username, "", at...); status != 401 {
			t.Errorf("with another user in the link: %d", status)
		}
	}
	if status, _, _ := s.do(t, "GET", "/files?path="+url.QueryEscape(path), "", "E2b-Sandbox-Id", id,
		"X-Access-Token", token, "Authorization", named); status != 404 {
		t.Errorf("a caller with the token names a user: %d", status)
	}
}
