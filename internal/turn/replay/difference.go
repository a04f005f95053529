package replay

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
)

// firstDifference returns the first difference between two runs of a turn, in the order of the
// steps: outputs, status, exit code; then the result and the states. Nil: nothing differs.
func firstDifference(ctx context.Context, cs *repo.ContextStore, a, b *turnstone.TurnRecord) (
	*turnstone.RunDifference, error) {
	for i := range min(len(a.Steps), len(b.Steps)) {
		if d, err := stepDifference(ctx, cs, &a.Steps[i], &b.Steps[i]); d != nil || err != nil {
			return d, err
		}
	}
	if d := valueDifference("result", string(a.Result), string(b.Result)); d != nil {
		return d, nil
	}
	if a.State == b.State {
		return nil, nil
	}
	if a.State == "" || b.State == "" {
		return valueDifference("state", string(a.State.Short()), string(b.State.Short())), nil
	}
	return stateDifference(ctx, cs, a.State, b.State)
}

// valueDifference returns the difference of two values, or nil.
func valueDifference(what, a, b string) *turnstone.RunDifference {
	if a == b {
		return nil
	}
	return &turnstone.RunDifference{What: what, First: a, Other: b}
}

func stepDifference(ctx context.Context, cs *repo.ContextStore, a, b *turnstone.RecordStep) (
	*turnstone.RunDifference, error) {
	for _, s := range []struct {
		name string
		a, b *turnstone.Content
	}{{"stdout", a.Stdout, b.Stdout}, {"stderr", a.Stderr, b.Stderr}} {
		if digestOf(s.a) == digestOf(s.b) {
			continue
		}
		d, err := lineDifference(ctx, cs, s.a, s.b)
		if err != nil {
			return nil, err
		}
		d.Step, d.Stream = a.Name, s.name
		return d, nil
	}
	d := valueDifference("status", string(a.Status), string(b.Status))
	d = cmp.Or(d, valueDifference("exit code", exitCode(a.ExitCode), exitCode(b.ExitCode)))
	if d != nil {
		d.Step = a.Name
	}
	return d, nil
}

// maxShownLine bounds the part of a line that a difference shows in bytes.
const maxShownLine = 200

// lineDifference returns the first line that differs in two outputs, which differ. Nil stands for
// an output that is empty or was not kept.
func lineDifference(ctx context.Context, cs *repo.ContextStore, a, b *turnstone.Content) (
	*turnstone.RunDifference, error) {
	var in [2]*bufio.Reader
	for i, c := range []*turnstone.Content{a, b} {
		if c == nil {
			in[i] = bufio.NewReader(strings.NewReader(""))
			continue
		}
		r, err := cs.Store.OpenContent(ctx, *c)
		if err != nil {
			return nil, err
		}
		defer func() { _ = r.Close() }()
		in[i] = bufio.NewReaderSize(r, 64<<10)
	}
	for line := 1; ; {
		x, err := in[0].ReadSlice('\n')
		y, err2 := in[1].ReadSlice('\n')
		if string(x) != string(y) {
			at := firstByte(x, y)
			return &turnstone.RunDifference{Line: line, First: around(x, at), Other: around(y, at)}, nil
		}
		for _, err := range []error{err, err2} {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
				return nil, err
			}
		}
		if errors.Is(err, io.EOF) && errors.Is(err2, io.EOF) {
			return nil, turnstone.Errorf("executor.compare", turnstone.KindIntegrity, "an output",
				"has the same bytes in both runs, and another digest")
		}
		if err == nil {
			line++
		}
	}
}

// firstByte returns the offset of the first byte that differs.
func firstByte(x, y []byte) int {
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return i
		}
	}
	return min(len(x), len(y))
}

// around returns the part of line around the byte at.
func around(line []byte, at int) string {
	text := strings.TrimSuffix(string(line), "\n")
	from := 0
	if at > maxShownLine/2 {
		from = min(at-maxShownLine/2, len(text))
	}
	cut := text[from:min(len(text), from+maxShownLine)]
	if from > 0 {
		cut = "…" + cut
	}
	if from+maxShownLine < len(text) {
		cut += "…"
	}
	return cut
}

// stateDifference returns the first difference of two states: a file, a variable, the directory.
func stateDifference(ctx context.Context, cs *repo.ContextStore, a, b turnstone.Digest) (
	*turnstone.RunDifference, error) {
	before, err := cs.State(ctx, a)
	if err != nil {
		return nil, err
	}
	after, err := cs.State(ctx, b)
	if err != nil {
		return nil, err
	}
	rep := &turnstone.ReplayReport{}
	if err := compareStates(ctx, cs, before, after, rep); err != nil {
		return nil, err
	}
	if len(rep.Changes) > 0 {
		what := map[string]string{"only before": "only in the first run",
			"only now": "only in the other run"}
		c := rep.Changes[0]
		return &turnstone.RunDifference{File: c.Path, What: cmp.Or(what[c.What], c.What)}, nil
	}
	if len(rep.Env) > 0 {
		name := rep.Env[0]
		return valueDifference("environment "+name, variable(before.Env, name),
			variable(after.Env, name)), nil
	}
	return valueDifference("working directory", before.Cwd, after.Cwd), nil
}

// variable returns the value of a variable, or "".
func variable(env []string, name string) string {
	i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	if i < 0 {
		return ""
	}
	return around([]byte(env[i][len(name)+1:]), 0)
}

func digestOf(c *turnstone.Content) turnstone.Digest {
	if c == nil {
		return ""
	}
	return c.Digest
}
