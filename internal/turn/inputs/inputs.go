// Package inputs copies a turn's files into its sandbox, and keeps copies of them for replays.
package inputs

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/store"
)

// keepLimit bounds the kept bytes of one input.
const keepLimit = config.DefaultOutput

// Inputs are the files that are copied to a turn's sandbox before its steps.
type Inputs struct {
	// Replayed are the inputs of the repeated turn. They precede Files.
	Replayed []turnstone.RecordInput
	Files    []sandbox.Transfer
	// Done are the inputs of a turn that is resumed: its state has them already. They precede all
	// others.
	Done    []turnstone.RecordInput
	Dir     string       // the turn's folder for copies; empty: no copies are made
	Floor   config.Space // space that copies leave free on their disk
	Secrets *secret.Set  // inputs that contain a secret are not kept

	added  []*input
	packed []packed // what a script has sent; nil: nothing
}

// An input is a file or folder in the sandbox, and its copy until it is stored.
type input struct {
	dest string
	file *os.File // a tar stream without a name
	over bool     // too large to be kept, so it cannot be replayed
	scan *secret.Scanner

	floor config.Space // space that the copy leaves free on its disk
}

// Put copies the inputs to s. Replayed inputs are read from from.
func (in *Inputs) Put(ctx context.Context, s *sandbox.Sandbox, from *store.Store) error {
	defer s.Guard(ctx)()
	if in.packed != nil {
		return in.putPacked(ctx, s)
	}
	for _, r := range in.Replayed {
		c, err := from.OpenContent(ctx, r.Tar)
		if err == nil {
			err = s.Client().Put(ctx, r.Dest, c)
			_ = c.Close()
		}
		if err != nil {
			return s.CauseOf(err)
		}
	}
	for _, t := range in.Files {
		one := &input{dest: t.Dest, floor: in.Floor}
		in.added = append(in.added, one)
		if err := s.Add(ctx, t, one.writer(in.Dir, in.Secrets)); err != nil {
			return s.CauseOf(err)
		}
	}
	return nil
}

// writer returns the destination of the copy. A turn runs even if an input cannot be copied. An
// input that contains a secret's value, in any form of Written, is not kept.
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
		_ = in.file.Truncate(0) // a value may begin in the data before
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

// Keep adds the inputs to the batch. tell receives the reason for each input that is not kept.
func (in *Inputs) Keep(ctx context.Context, b *store.Batch, tell func(string)) (
	[]turnstone.RecordInput, error) {
	kept := slices.Concat(in.Done, in.Replayed)
	for _, one := range kept {
		if one.Tar.Digest == "" {
			continue
		}
		if err := b.Refer(ctx, one.Tar); err != nil {
			return nil, err
		}
	}
	for _, in := range in.added {
		if in.over {
			why := ""
			if in.scan != nil && in.scan.Found() != "" {
				why = ", because it holds the secret " + in.scan.Found()
			}
			tell("a copy of the files added to " + in.dest + " is not kept" + why +
				": the turn cannot be replayed")
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

// Close frees the copies. The receiver may be nil.
func (in *Inputs) Close() {
	if in == nil {
		return
	}
	for _, one := range in.added {
		if one.file != nil {
			_ = one.file.Close()
		}
	}
	for _, p := range in.packed {
		_ = p.file.Close()
	}
}
