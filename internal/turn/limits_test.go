package turn

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turntest"
)

// admitted is the plan of a request on a host with this configuration.
func admitted(t *testing.T, configuration string, req Request) (*plan, error) {
	t.Helper()
	h := &statedir.Dir{Root: t.TempDir()}
	if err := os.WriteFile(h.Path(config.File), []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := planTurn(req, "/workspace")
	if err != nil {
		t.Fatal(err)
	}
	x := New(h)
	return p, x.admit(p, ok[config.Config](t)(x.config()))
}

func TestLimits(t *testing.T) {
	const small = "[limits]\ncpus = 1\nmemory = \"512MiB\"\ndisk = \"1GiB\"\ntimeout = \"10m\"\n"
	for name, c := range map[string]struct {
		front, config string
		req           Request
		says          string
	}{
		"more disk than the host":   {front: "disk: 16TiB", says: "disk: 16.0 TiB is more than the "},
		"more disk":                 {front: "disk: 2GiB", config: small, says: "disk: 2.0 GiB is more than the 1.0 GiB"},
		"more memory":               {front: "memory: 600MiB", config: small, says: "memory: 600.0 MiB is more than the 512.0 MiB"},
		"more cpus":                 {front: "cpus: 3", config: small, says: "cpus: 3 is more than the 1"},
		"more time":                 {front: "timeout: 11m", config: small, says: "timeout: 11m0s is more than the 10m0s"},
		"the default, asked for":    {front: "timeout: 1h", config: small, says: "timeout: 1h0m0s is more than the 10m0s"},
		"the default, by a flag":    {req: Request{Timeout: DefaultTimeout}, config: small, says: "timeout: 1h0m0s is more than the 10m0s"},
		"many cpus":                 {front: fmt.Sprintf("cpus: %d", 4*max(2, runtime.NumCPU())+1), says: fmt.Sprintf(" is more than the %d that this host gives a sandbox", max(2, runtime.NumCPU()))},
		"some cpus":                 {front: fmt.Sprintf("cpus: %d", 4*max(2, runtime.NumCPU())), says: fmt.Sprintf(" is more than the %d that this host gives a sandbox", max(2, runtime.NumCPU()))},
		"more memory than there is": {front: "memory: 1000GiB", says: "memory: 1000.0 GiB is more than the "},
		"a flag does not help":      {req: Request{Disk: 2 << 30}, config: small, says: "disk: 2.0 GiB is more"},
		"a long time":               {req: Request{Timeout: 25 * time.Hour}, says: "timeout: 25h0m0s is more than the 24h0m0s"},
		"within":                    {front: "disk: 1GiB\nmemory: 512MiB\ncpus: 1\ntimeout: 10m", config: small},
		"nothing":                   {config: small},
		"nothing at all":            {},
	} {
		c.req.Document = parse(t, "---\n"+c.front+"\n---\n")
		p, err := admitted(t, c.config, c.req)
		if c.says != "" {
			if turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(err.Error(), c.says) || !strings.Contains(turnstone.HintOf(err), "[limits]") {
				t.Errorf("%s: %v (%s), want %q", name, err, turnstone.HintOf(err), c.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if c.config == small && (p.shape != turnstone.Shape{CPUs: 1, Memory: 512 << 20, Disk: 1 << 30, Network: true} || p.timeout != 10*time.Minute) {
			t.Errorf("%s: %+v, %s", name, p.shape, p.timeout)
		}
	}
}

// What readers take of a guest is bounded by the host, whatever disk was asked for.
func TestLimitsReachTheReaders(t *testing.T) {
	p, err := admitted(t, "[limits]\nentries = 1000\nfile_size = \"1GiB\"", Request{Document: parse(t, "")})
	if err != nil {
		t.Fatal(err)
	}
	if b := p.bounds(nil); b.Limits.Entries != 1000 || b.Limits.FileSize != 1<<30 {
		t.Errorf("%+v", b)
	}
}

// Nothing starts while the disk is nearly full, and nothing is left of what did not.
func TestLowSpaceStartsNothing(t *testing.T) {
	x := New(&statedir.Dir{Root: t.TempDir()})
	x.space.Statfs = func(string) (uint64, uint64, error) { return 100 << 30, 1<<30 - 1, nil }
	turn, err := x.Run(t.Context(), Request{Document: parse(t, step("", "true"))}, &observer{})
	if turn != nil || turnstone.KindOf(err) != turnstone.KindExhausted || !strings.Contains(err.Error(), "must stay free") {
		t.Errorf("%v, %v", turn, err)
	}
	if _, err := os.Stat(x.home.Path("turns")); !os.IsNotExist(err) {
		t.Error("there is a turn")
	}
	if _, err := x.Exec(t.Context(), CommandRequest{Argv: []string{"true"}}, func(string) {}); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Errorf("exec: %v", err)
	}
}

// A turn that runs while the disk gets full ends with a receipt that says so, and with the
// state that it had come to.
func TestLowSpaceEndsTheTurn(t *testing.T) {
	x := New(turntest.Home(t))
	var full atomic.Bool
	x.space.Every = 10 * time.Millisecond
	x.space.Statfs = func(dir string) (uint64, uint64, error) {
		if full.Load() {
			return 100 << 30, 600 << 20, nil
		}
		return diskspace.Statfs(dir)
	}
	obs := &observer{onStep: func(s *document.Step) {
		if s.Name == "fill" {
			full.Store(true)
		}
	}}
	doc := parse(t, step("name=first", "echo kept > kept")+step("name=fill", "sleep 600")+step("name=after", "true"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	turn, err := x.Run(ctx, Request{Document: doc}, obs)
	if err != nil {
		t.Fatal(err)
	}
	if turn.Result != turnstone.ResultError || !strings.Contains(turn.Error, "must stay free") || turn.Hint == "" {
		t.Errorf("result %s: %s (%s)", turn.Result, turn.Error, turn.Hint)
	}
	if turn.Steps[0].Status != turnstone.StepPassed || turn.Steps[1].Status != turnstone.StepError || !strings.Contains(turn.Steps[1].Note, "stay free") || turn.Steps[2].Status != turnstone.StepSkipped {
		t.Errorf("steps: %+v", turn.Steps)
	}
	if !strings.Contains(turn.Receipt, "must stay free") || turn.FSHash == "" || turn.Layer.Added == 0 {
		t.Errorf("fs %q, layer %+v:\n%s", turn.FSHash, turn.Layer, turn.Receipt)
	}
}
