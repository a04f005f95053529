package turn

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/store"
)

// keepLimit bounds the kept bytes of one input.
const keepLimit = config.DefaultOutput

// An input is what was put into the sandbox before the steps, until it is kept.
type input struct {
	dest string
	file *os.File // a tar stream; it has no name any more
	over bool     // it was too large to be kept, and cannot be replayed
	scan *secret.Scanner

	floor config.Space // that the copy leaves free on its disk
}

// addAll copies what the plan adds into the sandbox, and keeps a copy for whoever
// runs the turn again. What a replay puts in comes from the turn that it replays.
func (r *run) addAll(ctx context.Context, s *Sandbox) error {
	defer s.Guard(ctx)()
	for _, in := range r.again.replayed() {
		c, err := r.at.cs.Store.OpenContent(ctx, in.Tar)
		if err == nil {
			err = s.Client().Put(ctx, in.Dest, c)
			_ = c.Close()
		}
		if err != nil {
			return s.CauseOf(err)
		}
	}
	for _, t := range r.plan.Add {
		in := &input{dest: t.Dest, floor: r.plan.Host.Limits.FreeSpace}
		r.added = append(r.added, in)
		if err := s.Add(ctx, t, in.writer(r.dir, r.plan.Secrets)); err != nil {
			return s.CauseOf(err)
		}
	}
	return nil
}

// replayed returns what the turn that this one repeats was given.
func (again *replayOf) replayed() []turnstone.RecordInput {
	if again == nil {
		return nil
	}
	return slices.Clone(again.inputs)
}

// writer returns where the copy goes. One that cannot be kept is no reason not to
// run the turn.
// One that holds the value of a secret, in any form of Written, is not kept.
func (in *input) writer(dir string, secrets *secret.Set) io.Writer {
	in.over = true
	if dir == "" {
		return io.Discard
	}
	f, err := os.CreateTemp(dir, ".input-*")
	if err != nil {
		return io.Discard
	}
	in.over, in.scan = false, secrets.Written().Scanner()
	_ = os.Remove(f.Name())
	in.file = f
	return (*inputWriter)(in)
}

type inputWriter input

// Write implements io.Writer; it never fails.
func (in *inputWriter) Write(p []byte) (int, error) {
	if in.over {
		return len(p), nil
	}
	if _, _ = in.scan.Write(p); in.scan.Found() != "" {
		in.over = true
		_ = in.file.Truncate(0) // what came before may be the beginning of it
		return len(p), nil
	}
	at, err := in.file.Seek(0, io.SeekCurrent)
	if err == nil && at+int64(len(p)) <= keepLimit {
		_, err = in.file.Write(p)
	} else {
		in.over = true
	}
	if err == nil && at/diskspace.CheckEvery != (at+int64(len(p)))/diskspace.CheckEvery {
		err = diskspace.Room(filepath.Dir(in.file.Name()), in.floor)
	}
	if err != nil {
		in.over = true
	}
	return len(p), nil
}

// keepInputs puts the inputs into the batch.
func (r *run) keepInputs(ctx context.Context, b *store.Batch) ([]turnstone.RecordInput, error) {
	kept := r.again.replayed()
	for _, in := range r.added {
		if in.over {
			why := ""
			if in.scan != nil && in.scan.Found() != "" {
				why = ", for it holds the secret " + in.scan.Found()
			}
			r.obs.Preparing("a copy of what was put to " + in.dest + " is not kept" + why + ": the turn cannot be replayed")
			kept = append(kept, turnstone.RecordInput{Dest: in.dest})
			continue
		}
		size, err := in.file.Seek(0, io.SeekEnd)
		if err == nil {
			_, err = in.file.Seek(0, io.SeekStart)
		}
		if err != nil {
			return nil, err
		}
		c, err := b.PutContent(ctx, in.file, size)
		if err != nil {
			return nil, err
		}
		kept = append(kept, turnstone.RecordInput{Dest: in.dest, Tar: c})
	}
	return kept, nil
}

func (r *run) closeInputs() {
	for _, in := range r.added {
		if in.file != nil {
			_ = in.file.Close()
		}
	}
}
