package cli

import (
	"context"
	"errors"
	"path/filepath"

	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/terminal"
)

// Do calls f with a context that the user can cancel. An error of f without an exit status gets the
// status of an error before anything was started.
func (a *App) Do(f func(ctx context.Context) error) error {
	ctx, stop := Interruptible(a.Say, ExitAborted)
	defer stop()
	err := f(ctx)
	var exit *ExitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return Fail(err)
}

// Say prints one line of turn's own text on standard error.
func (a *App) Say(what string) { terminal.Println(a.Stderr, "turn: "+what) }

// WithExecutor is Do with an executor.
func (a *App) WithExecutor(f func(ctx context.Context, x Executor) error) error {
	return a.Do(func(ctx context.Context) error {
		x, err := a.Open(ctx)
		if err != nil {
			return Exit(ExitAborted, err)
		}
		return errors.Join(f(ctx, x), x.Close())
	})
}

// Durable makes the name of a file durable that a command has written.
func Durable(path string) error { return filestamp.SyncDir(filepath.Dir(path)) }

// StateDir opens the state directory.
func (a *App) StateDir() (*statedir.Dir, error) { return statedir.Open(a.Env.Dir) }

// WithRefs is WithExecutor for a command whose arguments refs name sessions or turns. It expands
// references to the current session; after success, and also if the command reports a negative
// result by its exit status alone, the session of the first reference becomes the current session.
func (a *App) WithRefs(
	refs []*string, f func(ctx context.Context, x Executor) error,
) error {
	return a.WithExecutor(func(ctx context.Context, x Executor) error {
		given := *refs[0]
		if err := a.Expand(ctx, x, refs...); err != nil {
			return err
		}
		err := f(ctx, x)
		var exit *ExitError
		if err == nil || errors.As(err, &exit) && exit.Err == nil {
			x.NoteUse(ctx, given)
		}
		return err
	})
}

// Expand expands references to the current session.
func (a *App) Expand(ctx context.Context, x Executor, refs ...*string) (err error) {
	for _, ref := range refs {
		if *ref, err = x.Expand(ctx, *ref, a.Env.Session); err != nil {
			return err
		}
	}
	return nil
}

// Locate returns the path of the state directory, which need not exist.
func (a *App) Locate() (string, error) { return statedir.Locate(a.Env.Dir) }
