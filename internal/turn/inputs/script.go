package inputs

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Step is a step of a turn, for a script.
type Step struct {
	Params   wire.ShellExecuteParams
	Text     string
	Timeout  time.Duration // 0: none
	Continue bool          // a failure does not end the turn
}

// packed is an input as a tar stream.
type packed struct {
	dest string
	file *os.File // without a name
	size int64
}

// Script returns a function that returns the commands of a turn: the inputs, the steps, which get
// the user of the template, and the end. Put then sends the same inputs again.
func (in *Inputs) Script(from *store.Store, steps func(user string) []Step) func(
	ctx context.Context, user string) ([]substrate.Call, error) {
	return func(ctx context.Context, user string) ([]substrate.Call, error) {
		if err := in.pack(ctx, from); err != nil {
			return nil, err
		}
		var calls []substrate.Call
		add := func(method string, params any, data io.ReaderAt, size int64) error {
			c, err := sandbox.Call(method, params)
			c.Data, c.Size = data, size
			calls = append(calls, c)
			return err
		}
		for _, p := range in.packed {
			if err := add(wire.MethodFileSystemUnpack, wire.FileSystemUnpackParams{Dest: p.dest},
				p.file, p.size); err != nil {
				return nil, err
			}
		}
		for _, s := range steps(user) {
			if err := add(wire.MethodShellExecute, s.Params, strings.NewReader(s.Text),
				int64(len(s.Text))); err != nil {
				return nil, err
			}
			last := &calls[len(calls)-1]
			last.Timeout, last.Continue = s.Timeout, s.Continue
		}
		return calls, add(wire.MethodStateFreeze, struct{}{}, nil, 0)
	}
}

// pack packs all inputs into files.
func (in *Inputs) pack(ctx context.Context, from *store.Store) error {
	in.packed = []packed{}
	for _, r := range in.Replayed {
		err := in.spool(r.Dest, func(w io.Writer) error {
			c, err := from.OpenContent(ctx, r.Tar)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			_, err = io.Copy(w, c)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, t := range in.Files {
		one := &input{dest: t.Dest, floor: in.Floor}
		in.added = append(in.added, one)
		also := one.writer(in.Dir, in.Secrets)
		err := in.spool(t.Dest, func(w io.Writer) error {
			return t.Pack(ctx, io.MultiWriter(w, also))
		})
		if err != nil {
			return turnstone.NewError("executor.add", turnstone.KindInvalid, t.Path, err)
		}
	}
	return nil
}

// spool adds a packed input that write writes.
func (in *Inputs) spool(dest string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(in.Dir, ".packed-*")
	if err != nil {
		return err
	}
	_ = os.Remove(f.Name())
	in.packed = append(in.packed, packed{dest: dest, file: f})
	if err := write(f); err != nil {
		return err
	}
	in.packed[len(in.packed)-1].size, err = f.Seek(0, io.SeekEnd)
	return err
}

// putPacked sends the packed inputs.
func (in *Inputs) putPacked(ctx context.Context, s *sandbox.Sandbox) error {
	for _, p := range in.packed {
		if err := s.Client().Put(ctx, p.dest, io.NewSectionReader(p.file, 0, p.size)); err != nil {
			return s.CauseOf(err)
		}
	}
	return nil
}
