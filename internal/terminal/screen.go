package terminal

import (
	"os"
	"strings"
	"sync"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"
)

// A Screen is the whole terminal, which shows lines until it is closed. The terminal is then as it
// was before. Its methods are used by one goroutine.
type Screen struct {
	in, out *os.File
	before  *term.State
	keys    chan byte
	closed  sync.Once
}

// Sequences that a terminal obeys: another buffer without a cursor, and the way back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[2J"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
)

// CanShow reports whether f is a terminal that a Screen can use.
func CanShow(f *os.File) bool { return styleOf(f, false).live }

// OpenScreen takes the terminal of in and out. Each key is read at once, and Ctrl-C is a key. Close
// the screen.
func OpenScreen(in, out *os.File) (*Screen, error) {
	s := &Screen{in: in, out: out, keys: make(chan byte)}
	if term.IsTerminal(int(in.Fd())) {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return nil, err
		}
		s.before = before
		go s.read()
	}
	if _, err := Printf(out, "%s", own(enterScreen)); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// read passes keys on. It ends with the program: a read of a terminal cannot be interrupted.
func (s *Screen) read() {
	var key [1]byte
	for {
		n, err := s.in.Read(key[:])
		if err != nil {
			close(s.keys)
			return
		}
		if n == 1 {
			s.keys <- key[0]
		}
	}
}

// Keys returns the channel of keys. It is closed when the terminal is gone.
func (s *Screen) Keys() <-chan byte { return s.keys }

// Size returns the columns and rows of the terminal.
func (s *Screen) Size() (columns, rows int) {
	columns, rows, err := term.GetSize(int(s.out.Fd()))
	if err != nil || columns <= 0 || rows <= 0 {
		return 80, 24
	}
	return columns, rows
}

// Draw shows lines, as many and as much of each as fits. They are made printable.
func (s *Screen) Draw(lines []string) error {
	columns, rows := s.Size()
	_, err := Printf(s.out, "%s", own(frame(lines, columns, rows)))
	return err
}

// frame returns what draws lines on a screen.
func frame(lines []string, columns, rows int) string {
	var b strings.Builder
	b.WriteString("\x1b[H")
	if len(lines) > rows {
		lines = lines[:rows]
	}
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(ansi.Truncate(Printable(line), columns, "…"))
		b.WriteString("\x1b[K")
	}
	b.WriteString("\x1b[J")
	return b.String()
}

// Close gives the terminal back as it was.
func (s *Screen) Close() {
	s.closed.Do(func() {
		_, _ = Printf(s.out, "%s", own(leaveScreen)) // the terminal may be gone
		if s.before != nil {
			_ = term.Restore(int(s.in.Fd()), s.before)
		}
	})
}
