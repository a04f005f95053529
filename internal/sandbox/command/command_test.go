package command

import (
	"os"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/wire"
)

// TestHintImage: a program that cannot be started comes with an image that has it.
func TestHintImage(t *testing.T) {
	start := turnstone.Errorf(wire.MethodProcessStart, turnstone.KindNotFound, "pip",
		"no such program")
	if err := hintImage("base", "pip", start); turnstone.HintOf(err) != "--image python has pip" {
		t.Error(turnstone.HintOf(err))
	}
}

//testrun:user
func TestExec(t *testing.T) {
	h := host.New(turntest.Home(t), host.Options{Kernel: os.Getenv("TURN_KERNEL"),
		KernelModules: os.Getenv("TURN_KERNEL_MODULES")}, nil)
	var out, errOut strings.Builder
	code, err := Run(t.Context(), h, Request{Argv: []string{"sh", "-c", "cat; echo $K >&2; exit 9"}, Env: []string{"K=v"},
		Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &errOut}, func(string) {})
	if err != nil || code != 9 || out.String() != "in" || errOut.String() != "v\n" {
		t.Errorf("%d, %v, %q, %q", code, err, out.String(), errOut.String())
	}
	_, err = Run(t.Context(), h, Request{Argv: []string{"sleep", "600"}, Timeout: time.Second, Stdout: &out, Stderr: &errOut}, func(string) {})
	if turnstone.KindOf(err) != turnstone.KindTimeout {
		t.Errorf("a command beyond its time: %v", err)
	}
	if _, err := Run(t.Context(), h, Request{}, func(string) {}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("no command: %v", err)
	}
}
