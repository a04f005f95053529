package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/testsize"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/substrate"
)

// restlessVar names the fault of a holder whose machine cannot be paused.
const restlessVar = "TURN_TEST_RESTLESS"

// TestMain makes this program the holder of a session's machine, like turn.
func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[0] == "turn" && os.Args[2] == "hold" && os.Args[3] == "--home" {
		if err := holdMain(os.Args[4], turnstone.SandboxID(os.Args[5]),
			os.Getenv(restlessVar)); err != nil {
			os.Exit(1)
		}
		return
	}
	if arg := os.Getenv(crashVariable); arg != "" {
		if err := crashChild(arg); err != nil {
			fmt.Fprintln(os.Stderr, err, turnstone.HintOf(err))
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func holdMain(home string, id turnstone.SandboxID, fault string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	h := &statedir.Dir{Root: home}
	open := func(ctx context.Context, id turnstone.SandboxID, spec sandboxes.Spec,
		progress func(string)) (sandboxes.Machine, sandboxes.Details, error) {
		x := testEngine(h)
		if fault == "" {
			return x.OpenMachine(ctx, id, spec, progress)
		}
		x.Launcher.Wrap = func(s substrate.Substrate) substrate.Substrate {
			return agitate(s, fault)
		}
		s, err := x.Create(ctx, CreateRequest{Image: spec.Image, Shape: spec.Shape,
			Network: spec.Network, Substrate: spec.Substrate, On: spec.On, Live: spec.Live},
			progress)
		if err != nil {
			return nil, sandboxes.Details{}, err
		}
		return s, sandboxes.Details{Template: s.Template.Digest, Substrate: s.Substrate(),
			Isolation: s.Isolation()}, nil
	}
	return sandboxes.NewStore(h.Root).Hold(ctx, id, open, os.Stdin, os.NewFile(3, "reports"),
		slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// A restlessDriver starts machines that cannot be paused.
type restlessDriver struct {
	substrate.Substrate
	substrate.Resumer
	fault string
}

func agitate(s substrate.Substrate, fault string) substrate.Substrate {
	d := restlessDriver{s, s.(substrate.Resumer), fault}
	if bringsKernel(s) {
		return struct {
			restlessDriver
			withKernel
		}{restlessDriver: d}
	}
	return d
}

func (d restlessDriver) Restore(ctx context.Context, m substrate.Machine) (substrate.Sandbox,
	error) {
	s, err := d.Substrate.Restore(ctx, m)
	if err != nil {
		return nil, err
	}
	one := restless{s, d.fault}
	disk, _ := s.(substrate.Disker)
	switch card, networks := s.(substrate.Networker); {
	case networks:
		return struct {
			restless
			substrate.Disker
			substrate.Networker
		}{one, disk, card}, nil
	case disk != nil:
		return struct {
			restless
			substrate.Disker
		}{one, disk}, nil
	}
	return one, nil
}

type restless struct {
	substrate.Sandbox
	fault string
}

func (r restless) Pause(ctx context.Context) error {
	switch r.fault {
	case "stands still all the same":
		_ = r.Sandbox.(substrate.Pauser).Pause(ctx)
	case "dies":
		_ = r.Close()
	}
	return turnstone.Errorf("test", turnstone.KindUnavailable, "the VMM", "said nothing").
		WithHint("ask again")
}

func (r restless) Resume(ctx context.Context) error {
	return r.Sandbox.(substrate.Pauser).Resume(ctx)
}

// TestFilesOutliveARestlessMachine checks that the turn's files are kept if the session's machine
// cannot be paused at the end of a turn, that the receipt says so, and that the machine ends. The
// next turn starts from the files.
func TestFilesOutliveARestlessMachine(t *testing.T) {
	h := turntest.Home(t)
	for _, name := range driver.Names()[1:] {
		faults := []string{"refuses", "stands still all the same", "dies"}
		if name != driver.GVisor { // of them, a guest with a kernel of its own matters to the second
			faults = testsize.Of(faults[1:2], faults)
		}
		for _, fault := range faults {
			t.Run(name+" "+fault, func(t *testing.T) { testRestless(t, h, name, fault) })
		}
	}
}

func testRestless(t *testing.T, h *statedir.Dir, name, fault string) {
	x := testEngine(h)
	s, err := x.Create(t.Context(), CreateRequest{Substrate: name}, func(string) {})
	if kind := turnstone.KindOf(err); (kind == turnstone.KindUnavailable ||
		kind == turnstone.KindNotFound) && !turntest.UnderKVM() {
		t.Skipf("%v (%s)", err, turnstone.HintOf(err))
	}
	_ = ok[*sandbox.Sandbox](t)(s, err).Close()
	t.Setenv(restlessVar, fault)
	label := "restless-" + strings.ToLower(string(turnstone.NewTurnID()))
	run := func(script string, lifetime turnstone.Lifetime) *turnstone.TurnReport {
		t.Helper()
		doc := ok[*document.Document](t)(document.Parse("a.md", []byte(step("", script))))
		return ok[*turnstone.TurnReport](t)(x.Run(t.Context(), plan.Request{Document: doc,
			Session: label, Lifetime: lifetime, Substrate: name}, &observer{}))
	}
	defer func() { _, _ = x.RemoveSession(t.Context(), label) }()
	turn := run("echo kept >f; sleep 1000 & export V=1", turnstone.LifetimeSession)
	if fault == "dies" { // with its previous files
		if turn.Result != turnstone.ResultError || turn.State != "" ||
			!strings.Contains(turn.Error, "its machine is not kept: ") ||
			!strings.Contains(turn.Error, "nor are its files") {
			t.Errorf("%s: %s (%s), state %q", turn.Result, turn.Error, turn.Hint, turn.State)
		}
	} else {
		if turn.Result != turnstone.ResultError || turn.State == "" ||
			turn.Error != "its machine is not kept: the VMM: said nothing" ||
			turn.Hint != "ask again" || strings.Contains(turn.Receipt, "\n  lifetime: session") {
			t.Fatalf("%s: %s (%s), state %q\n%s", turn.Result, turn.Error, turn.Hint, turn.State,
				turn.Receipt)
		}
		if next := run("cat f; echo $V", ""); next.Result != turnstone.ResultPassed ||
			!strings.Contains(next.Receipt, "kept\n1\n") {
			t.Errorf("%s\n%s", next.Result, next.Receipt)
		}
	}
	for _, i := range ok[[]sandboxes.Info](t)(sandboxes.NewStore(h.Root).List(t.Context())) {
		if strings.Contains(i.Label, label) {
			t.Errorf("its machine is left: %+v", i)
		}
	}
	g := ok[*turnstone.Graph](t)(x.Repo.Session(t.Context(), label))
	if _, err := os.Stat(x.Dir.Path("machines", string(g.Session.ID)+"-"+plan.DefaultBranch+
		".json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a machine is written down: %v", err)
	}
}
