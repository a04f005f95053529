package container

import (
	"context"
	"io"
	"strings"
	"sync"

	"turnstone.dev/turnstone/wire"
)

// maxBehind bounds the output that a sandbox sends of a process after its end, in bytes.
const maxBehind = 2 << 20

// maxLast bounds what a container says at its end, in bytes.
const maxLast = 500

// lastWords returns what the container says at its end, after ": "; empty if it says nothing. It is what it
// has written for that, and of its output only if its object asks for it: objects are read by many.
func (s *session) lastWords(ctx context.Context, id string, failed bool) string {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var said string
	if s.Main.Message != "" {
		if r, err := s.w.FileSystemRead(ctx, &wire.FileSystemReadParams{Path: s.Main.Message, Length: maxLast}); err == nil {
			said = strings.TrimSpace(string(r.Data))
		}
	}
	if said == "" && failed && s.Main.Output {
		if o, err := Tail(ctx, s.w, id, maxLast); err == nil {
			if said = strings.TrimSpace(o.Stderr); said == "" {
				said = strings.TrimSpace(o.Stdout)
			}
		}
	}
	if said == "" {
		return ""
	}
	return ": " + said[max(len(said)-maxLast, 0):]
}

// An Output is the end of what a process has written.
type Output struct {
	Process        string
	Stdout, Stderr string
	Exit           *wire.ProcessExit // nil: it runs
}

// Last returns the name of the process of a sandbox that its object asked for last, or the one before; empty
// if there is none, and how often it was started again.
func Last(ctx context.Context, w *wire.Client, previous bool) (id string, restarts int, err error) {
	all, err := w.ProcessList(ctx)
	if err != nil {
		return "", 0, err
	}
	s := &session{follower: &follower{}}
	number, _, _, _ := s.read(all.Processes)
	if previous {
		number--
	}
	f := &follower{number: number}
	for n := range all.Processes {
		if all.Processes[n].ProcessID == f.process() {
			return f.process(), max(number-1, 0), nil
		}
	}
	return "", 0, nil
}

// Tail returns the last bytes of both outputs of a process, as far as the sandbox has kept them.
func Tail(ctx context.Context, w *wire.Client, id string, most int64) (o Output, err error) {
	all, err := w.ProcessList(ctx)
	if err != nil {
		return o, err
	}
	p := wire.ProcessAttachParams{ProcessID: id, StdoutStream: w.NewStream(), StderrStream: w.NewStream()}
	var ends [2]int64
	for _, i := range all.Processes {
		if i.ProcessID == id {
			ends = [2]int64{i.StdoutEnd, i.StderrEnd}
			o.Exit = i.Exit
		}
	}
	p.StdoutOffset, p.StderrOffset = max(ends[0]-most, 0), max(ends[1]-most, 0)
	var from [2]*wire.Receiver
	for n, stream := range []wire.StreamID{p.StdoutStream, p.StderrStream} {
		if from[n], err = w.Receiver(stream); err != nil {
			return o, err
		}
		defer func() { _ = from[n].Close() }()
	}
	defer context.AfterFunc(ctx, func() { _, _ = from[0].Close(), from[1].Close() })()
	a, err := w.ProcessAttach(ctx, &p)
	if err != nil {
		return o, err
	}
	defer func() { _ = w.ProcessDetach(context.WithoutCancel(ctx), &wire.ProcessDetachParams{ProcessID: id}) }()
	var texts [2]string
	var both sync.WaitGroup
	for n, first := range []int64{a.StdoutOffset, a.StderrOffset} {
		both.Go(func() {
			limit := min(max(ends[n]-first, 0), most) // of a process that runs: its output has no end
			if o.Exit != nil {
				limit = most + maxBehind // its last output may come yet
			}
			b, _ := io.ReadAll(io.LimitReader(from[n], limit))
			texts[n] = strings.ToValidUTF8(string(b[max(int64(len(b))-most, 0):]), "\uFFFD")
		})
	}
	both.Wait()
	o.Process, o.Stdout, o.Stderr = id, texts[0], texts[1]
	return o, nil
}
