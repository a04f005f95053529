package engine

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// An onlyResumer clones running machines, and keeps none.
type onlyResumer struct {
	substrate.Substrate
	substrate.Resumer
}

// A bare substrate can do neither.
type bare struct{ substrate.Substrate }

// withKernel makes a wrapped driver a substrate.OwnKernel. Embedding the interface itself is
// impossible: the field would hide the method of the same name.
type withKernel struct{}

func (withKernel) OwnKernel() {}

func bringsKernel(s substrate.Substrate) bool {
	_, own := s.(substrate.OwnKernel)
	return own
}

// weaken hides the abilities of s beyond cloning.
func weaken(s substrate.Substrate) substrate.Substrate {
	w := onlyResumer{s, s.(substrate.Resumer)}
	if bringsKernel(s) {
		return struct {
			onlyResumer
			withKernel
		}{onlyResumer: w}
	}
	return w
}

func strip(s substrate.Substrate) substrate.Substrate {
	if bringsKernel(s) {
		return struct {
			bare
			withKernel
		}{bare: bare{s}}
	}
	return bare{s}
}

func output(t *testing.T, s *sandbox.Sandbox, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	if _, err := s.Client().Start(ctx,
		wire.ProcessStartParams{Argv: []string{"bash", "-c", script}},
		wire.Stdio{Out: &out, Err: &out}); err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return out.String()
}

// TestForkAsTheProduct clones a running sandbox on each substrate that works here like turn sandbox
// fork, using only a Resumer.
//
//testrun:user kvm
func TestForkAsTheProduct(t *testing.T) {
	h := turntest.Home(t)
	for _, name := range driver.Names()[1:] {
		t.Run(name, func(t *testing.T) {
			if one := os.Getenv("TURN_SUBSTRATE"); one != "" && one != name {
				t.Skip("this run is for " + one)
			}
			x := testEngine(h)
			x.Launcher.Wrap = weaken
			s, err := x.Create(t.Context(), CreateRequest{Substrate: name}, func(string) {})
			if kind := turnstone.KindOf(err); (kind == turnstone.KindUnavailable ||
				kind == turnstone.KindNotFound) && !turntest.UnderKVM() {
				t.Skipf("%v (%s)", err, turnstone.HintOf(err))
			}
			s = ok[*sandbox.Sandbox](t)(s, err)
			defer func() { _ = s.Close() }()
			output(t, s, "echo memory >/dev/shm/f; echo disk >/workspace/f; (sleep 1000 & echo "+
				"$! >/run/pid) >/dev/null 2>&1")
			dir := filepath.Join(t.TempDir(), "vm")
			if err := s.Snapshot(t.Context(), dir); err != nil {
				t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
			}
			names := []string{output(t, s, "hostname")}
			for range 2 {
				c := ok[*sandbox.Sandbox](t)(x.Create(t.Context(),
					CreateRequest{Substrate: s.Substrate(), From: dir}, func(string) {}))
				if got := output(t, c, "cat /dev/shm/f /workspace/f; kill -0 $(cat /run/pid) "+
					"&& echo it runs"); got != "memory\ndisk\nit runs\n" {
					t.Errorf("a clone says %q", got)
				}
				names = append(names, output(t, c, "hostname"))
				_ = c.Close()
			}
			if slices.Sort(names); len(slices.Compact(names)) != 3 {
				t.Errorf("not all have names of their own: %q", names)
			}
		})
	}
}

// TestRefusedBeforeItStarts checks that an operation on running machines that the substrate does
// not support ends a turn before its first step, and leaves a sandbox unchanged.
func TestRefusedBeforeItStarts(t *testing.T) {
	h := turntest.Home(t)
	for name, c := range map[string]struct {
		wrap func(substrate.Substrate) substrate.Substrate
		says string
	}{
		"a machine that is to be kept": {weaken,
			"does not keep machines, which `snapshot: vm` requires"},
		"by one that clones nothing": {strip, "does not keep machines"},
		"whose program has a fault":  {restricted, "never wakes up"},
	} {
		x := testEngine(h)
		x.Launcher.Wrap = c.wrap
		doc := ok[*document.Document](t)(document.Parse("a.md", []byte(step("", "echo ran"))))
		obs := &observer{}
		turn, err := x.Run(t.Context(), plan.Request{Document: doc, Snapshot: document.SnapshotVM},
			obs)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if turn.Result != turnstone.ResultError || !strings.Contains(turn.Error, c.says) ||
			turn.Hint == "" || turn.Steps[0].Status != turnstone.StepSkipped {
			t.Errorf("%s: %s: %s (%s), %+v", name, turn.Result, turn.Error, turn.Hint, turn.Steps)
		}
	}
	for name, wrap := range map[string]func(substrate.Substrate) substrate.Substrate{"strip": strip,
		"restricted": restricted} {
		x := testEngine(h)
		x.Launcher.Wrap = wrap
		if s, err := x.Create(t.Context(), CreateRequest{Live: true},
			func(string) {}); turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("%s: a sandbox that is to stand still: %v", name, err)
			_ = s.Close()
		}
		s := ok[*sandbox.Sandbox](t)(x.Create(t.Context(), CreateRequest{}, func(string) {}))
		dir := filepath.Join(t.TempDir(), "vm")
		for what, err := range map[string]error{"snapshot": s.Snapshot(t.Context(), dir)} {
			if turnstone.KindOf(err) != turnstone.KindUnavailable {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
		if _, err := s.Pause(t.Context()); name == "restricted" &&
			turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("pause: %v", err)
		} else if err == nil {
			_ = s.Resume(t.Context())
		}
		if got := output(t, s, "echo alive"); got != "alive\n" {
			t.Errorf("%s: afterwards it says %q", name, got)
		}
		_ = s.Close()
	}
}

// A faulty machine supports everything except pausing.
type faulty struct {
	substrate.Substrate
	substrate.Keeper
	withKernel
}

func (faulty) Abilities() substrate.Abilities {
	return substrate.Abilities{Live: turnstone.Errorf("test", turnstone.KindUnavailable,
		"version 1",
		"a machine that stood still never wakes up").WithHint("install version 2")}
}

func restricted(s substrate.Substrate) substrate.Substrate {
	if !bringsKernel(s) {
		return struct {
			substrate.Substrate
			substrate.Keeper
			substrate.Able
		}{s, s.(substrate.Keeper), faulty{}}
	}
	return faulty{Substrate: s, Keeper: s.(substrate.Keeper)}
}

// A failingKeeper fails after everything has been written.
type failingKeeper struct {
	substrate.Substrate
	substrate.Keeper
	withKernel
}

func (failingKeeper) Pack(context.Context, substrate.Machine, string,
	string) (substrate.Packed, error) {
	return substrate.Packed{}, turnstone.Errorf("test", turnstone.KindExhausted, "pack",
		"no space left on device").WithHint("make room")
}

// TestFilesOutliveTheirMachine checks that the turn's files are kept if the machine cannot be kept,
// and that the receipt says both.
func TestFilesOutliveTheirMachine(t *testing.T) {
	h := turntest.Home(t)
	fails := func(s substrate.Substrate) substrate.Substrate {
		if !bringsKernel(s) {
			return struct {
				substrate.Substrate
				substrate.Keeper
			}{s, failingKeeper{Substrate: s, Keeper: s.(substrate.Keeper)}}
		}
		return failingKeeper{Substrate: s, Keeper: s.(substrate.Keeper)}
	}
	for name, c := range map[string]struct {
		wrap   func(substrate.Substrate) substrate.Substrate
		script string
		result turnstone.Result
		says   string
	}{
		"while it is packed": {wrap: fails, script: "echo kept >f",
			result: turnstone.ResultError,
			says:   "its machine is not kept: pack: no space left on device"},
		"after a step that failed": {wrap: fails, script: "echo kept >f; exit 3",
			result: turnstone.ResultFailed,
			says:   "its machine is not kept: pack: no space left on device"},
	} {
		t.Run(name, func(t *testing.T) {
			x := testEngine(h)
			x.Launcher.Wrap = c.wrap
			doc := ok[*document.Document](t)(document.Parse("a.md", []byte(step("", c.script))))
			turn, err := x.Run(t.Context(), plan.Request{Document: doc,
				Snapshot: document.SnapshotVM}, &observer{})
			if err != nil {
				t.Fatal(err)
			}
			if turn.Result != c.result || !strings.Contains(turn.Error, c.says) ||
				turn.State == "" || !strings.Contains(turn.Receipt, "its machine is not kept") ||
				strings.Contains(turn.Receipt, "\n  snapshot: vm") {
				t.Fatalf("%s: %s (%s), state %q\n%s", turn.Result, turn.Error, turn.Hint,
					turn.State, turn.Receipt)
			}
			cs := ok[*repo.ContextStore](t)(x.Context(t.Context()))
			rec := ok[*turnstone.TurnRecord](t)(cs.Record(t.Context(),
				ok[turnstone.Turn](t)(cs.DB.Resolve(t.Context(), string(turn.ID)))))
			if rec.VM != nil || rec.State != turn.State || rec.Error != turn.Error {
				t.Errorf("%+v", rec)
			}
			x.Launcher.Wrap = nil
			s := ok[*sandbox.Sandbox](t)(x.Create(t.Context(), CreateRequest{On: string(turn.ID)},
				func(string) {}))
			defer func() { _ = s.Close() }()
			if got := output(t, s, "cat /workspace/f"); got != "kept\n" {
				t.Errorf("the next one reads %q", got)
			}
		})
	}
}
