package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
)

// TestVerdictKeepsKind checks that the kind in --json of an interrupted turn is the kind of the
// interruption.
func TestVerdictKeepsKind(t *testing.T) {
	for _, kind := range []turnstone.Kind{turnstone.KindNotFound, turnstone.KindUnavailable,
		turnstone.KindCanceled, turnstone.KindDead, turnstone.KindExhausted} {
		for result, code := range map[turnstone.Result]int{turnstone.ResultError: cli.ExitAborted,
			turnstone.ResultFailed: cli.ExitFailed} {
			err := verdict(&turnstone.TurnReport{Result: result, Error: "why", Hint: "do",
				Kind: kind}, nil)
			var exit *cli.ExitError
			if !errors.As(err, &exit) || exit.Code != code {
				t.Fatalf("%s: %v", result, err)
			}
			if b := cli.NewErrorBody(exit.Err); b.Kind != kind || b.Op != "run" ||
				b.Message != "why" || b.Hint != "do" {
				t.Errorf("%s, %s: %+v", result, kind, b)
			}
		}
	}
}

// TestEveryCommandHasALog checks that no command logs before its verbosity is known.
func TestEveryCommandHasALog(t *testing.T) {
	t.Cleanup(func(old *slog.Logger) func() { return func() { slog.SetDefault(old) } }(
		slog.Default()))
	sink, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sink.Close() }()
	for _, verbose := range []bool{false, true} {
		args := []string{"version"}
		if verbose {
			args = append(args, "-v")
		}
		slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr,
			&slog.HandlerOptions{Level: slog.LevelDebug})))
		a := &cli.App{Stdin: os.Stdin, Stdout: sink, Stderr: sink}
		if code := a.Main(new(commandLine), args); code != cli.ExitOK {
			t.Fatalf("%q: status %d", args, code)
		}
		l := slog.Default()
		if l.Enabled(context.Background(), slog.LevelInfo) != verbose ||
			l.Enabled(context.Background(), slog.LevelDebug) {
			t.Errorf("%q: the level differs from the requested level", args)
		}
	}
}
