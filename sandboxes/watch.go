package sandboxes

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/ownsocket"
)

// The watch socket of a sandbox carries lines of JSON to its reader: the sandbox (Info) as it is,
// and again after each change. A reader that is late gets the latest only.

const (
	// maxWatchers bounds the concurrent watchers of a sandbox. Others get one line.
	maxWatchers = 64
	// watchWrite bounds the time in which a reader takes a line.
	watchWrite = 10 * time.Second
	// askTime bounds the time in which a holder answers, unless it is stopped.
	askTime = 2 * time.Second
	// maxAsked bounds the holders that are asked at the same time.
	maxAsked = 16
)

// A watched serves the watch socket of a sandbox. The methods of nil do nothing.
type watched struct {
	listener *net.UnixListener
	info     func() Info
	log      *slog.Logger
	slots    chan struct{}
	done     chan struct{} // closed at the end
	wg       sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
}

func newWatched(l *net.UnixListener, info func() Info, log *slog.Logger) *watched {
	w := &watched{listener: l, info: info, log: log, slots: make(chan struct{}, maxWatchers),
		done: make(chan struct{}), changed: make(chan struct{})}
	w.wg.Go(w.accept)
	return w
}

// tell makes w report the sandbox again.
func (w *watched) tell() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *watched) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// close reports the sandbox's end to its watchers, and waits for them.
func (w *watched) close() {
	if w == nil {
		return
	}
	close(w.done)
	_ = w.listener.Close()
	w.wg.Wait()
}

func (w *watched) accept() {
	ownsocket.Accept(w.listener, w.log, "a watcher", func(conn *net.UnixConn) {
		select {
		case w.slots <- struct{}{}:
			w.wg.Go(func() {
				defer func() { <-w.slots }()
				w.serve(conn)
			})
		default:
			_, _ = w.write(conn), conn.Close() // its buffer is empty, so this does not wait
		}
	})
}

// serve reports to one reader until the end of either.
func (w *watched) serve(conn *net.UnixConn) {
	gone := make(chan struct{})
	w.wg.Go(func() { // a reader sends nothing
		defer close(gone)
		_, _ = io.Copy(io.Discard, conn)
	})
	defer func() { _ = conn.Close() }()
	for {
		next := w.next()
		if w.write(conn) != nil {
			return
		}
		select {
		case <-next:
		case <-gone:
			return
		case <-w.done:
			_ = w.write(conn)
			return
		}
	}
}

func (w *watched) write(conn *net.UnixConn) error {
	b, err := json.Marshal(w.info())
	if err != nil {
		return err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(watchWrite))
	_, err = conn.Write(append(b, '\n'))
	return err
}

// A watcher reads a watch socket.
type watcher struct {
	id   turnstone.SandboxID
	conn *net.UnixConn
	in   *bufio.Scanner
}

func (s *Store) watcher(ctx context.Context, id turnstone.SandboxID) (*watcher, error) {
	conn, err := ownsocket.Dial(ctx, s.path(id), watchFile)
	if err != nil {
		return nil, err
	}
	in := bufio.NewScanner(conn)
	in.Buffer(nil, maxState)
	return &watcher{id: id, conn: conn, in: in}, nil
}

// next waits for the next report.
func (w *watcher) next() (Info, error) {
	if !w.in.Scan() {
		if err := w.in.Err(); err != nil {
			return Info{}, err
		}
		return Info{}, io.EOF
	}
	return parseInfo(w.in.Bytes(), w.id)
}

// ask returns the sandbox i as its holder reports it, and otherwise as it is: its holder has ended
// meanwhile, is stopped, or is of an older version.
func (s *Store) ask(i Info) Info {
	if i.State != StateReady {
		return i
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	w, err := s.watcher(ctx, i.ID)
	if err != nil {
		return i
	}
	defer func() { _ = w.conn.Close() }()
	_ = w.conn.SetDeadline(time.Now().Add(askTime))
	now, err := w.next()
	if err != nil {
		return i
	}
	return now
}

// askAll is ask for each of infos, in place.
func (s *Store) askAll(infos []Info) {
	var all sync.WaitGroup
	slots := make(chan struct{}, maxAsked)
	for n := range infos {
		if infos[n].State != StateReady {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			infos[n] = s.ask(infos[n])
		})
	}
	all.Wait()
}

// Watch calls changed with the sandbox as it is, and again when its state has changed, until the
// sandbox or ctx ends. The last call has the final state. Changes that follow each other quickly
// are merged. The error is of kind KindNotFound if there is no such sandbox, and of kind
// KindUnavailable if it is still being created.
func (s *Store) Watch(ctx context.Context, id turnstone.SandboxID, changed func(Info)) error {
	i, err := s.read(id)
	switch {
	case err != nil:
		return err
	case i.State.Final():
		changed(i)
		return nil
	case i.State == StateCreating:
		return turnstone.Errorf("sandbox.watch", turnstone.KindUnavailable, "sandbox "+i.Title(),
			"it is still being created").WithHint("try again in a few seconds")
	}
	if w, err := s.watcher(ctx, id); err == nil {
		defer context.AfterFunc(ctx, func() { _ = w.conn.Close() })()
		defer func() { _ = w.conn.Close() }()
		for {
			now, err := w.next()
			if err != nil {
				break
			}
			if changed(now); now.State.Final() {
				return nil
			}
		}
	}
	if ctx.Err() != nil {
		return canceled(ctx, "sandbox.watch")
	}
	// The holder died without a report, unless it has too many watchers or an older version.
	// A holder that is killed loses its sockets before its lock.
	for until := time.Now().Add(askTime); ; {
		if i, err = s.read(id); err != nil {
			return err
		}
		if i.State.Final() || !time.Now().Before(until) {
			break
		}
		select {
		case <-ctx.Done():
			return canceled(ctx, "sandbox.watch")
		case <-time.After(20 * time.Millisecond):
		}
	}
	if changed(i); i.State.Final() {
		return nil
	}
	return turnstone.Errorf("sandbox.watch", turnstone.KindUnavailable, "sandbox "+i.Title(),
		"its holder does not report changes").WithHint("try again")
}
