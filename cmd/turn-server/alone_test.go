package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMachineRetryAlone: a node without a common database that dies and comes back starts a turn with
// "retry: 1" again, once. Nothing starts it a third time.
func TestMachineRetryAlone(t *testing.T) {
	t.Parallel()
	home := homeWithTemplates(t)
	serve := func() *process {
		p := start(t, home, nil, "--listen", "127.0.0.1:0")
		p.await("node registered")
		return p
	}
	p := serve()
	g := &group{t: t}
	c := &client{t, filepath.Join(t.TempDir(), "home"), []string{"TURN_HOST=" + p.socket()}}
	r := g.run(c, "work", "---\nretry: 1\n---\n```bash\necho began; sleep 600\n```\n")
	began := func(n int) {
		t.Helper()
		waitFor(t, func() string {
			select {
			case err := <-r.end:
				t.Fatalf("%v\n%s%s", err, r.out.String(), r.errs.String())
			default:
			}
			if strings.Count(journals(t, home), `"output":`) < n {
				return "the attempt has printed nothing yet"
			}
			return ""
		})
	}
	began(1)
	killed(p)
	p = serve()
	began(2)
	killed(p)
	serve()
	if err := <-r.end; err == nil || !strings.Contains(r.errs.String(), "the executor ended") {
		t.Errorf("%v\n%s%s", err, r.out.String(), r.errs.String())
	}
	if n := strings.Count(journals(t, home), `"output":`); n != 2 {
		t.Errorf("%d attempts", n)
	}
	if log := c.must("log", "work"); strings.Count(log, "interrupted") != 1 {
		t.Errorf("the log is %s", log)
	}
}

// journals returns what the journals of all turns of a server have.
func journals(t *testing.T, home string) (all string) {
	t.Helper()
	check(t, filepath.WalkDir(filepath.Join(home, "server"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "journal" {
			b, _ := os.ReadFile(path)
			all += string(b)
		}
		return nil // files come and go
	}))
	return all
}
