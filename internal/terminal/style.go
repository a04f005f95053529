package terminal

import (
	"os"

	"golang.org/x/term"
)

// A style describes the capabilities of the progress's destination.
type style struct {
	quiet  bool
	live   bool // a terminal that can erase a line
	colors bool
	width  func() int // columns of the terminal
}

// styleOf returns the capabilities of f. It respects NO_COLOR (https://no-color.org) and TERM=dumb.
func styleOf(f *os.File, quiet bool) style {
	terminal := term.IsTerminal(int(f.Fd()))
	name := os.Getenv("TERM")
	capable := terminal && name != "" && name != "dumb"
	return style{
		quiet:  quiet,
		live:   capable,
		colors: capable && os.Getenv("NO_COLOR") == "",
		width: func() int {
			if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
				return w
			}
			return 80
		},
	}
}
