package cuttest

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/engine/cuttest/internal/fsops"
)

// A kind of operations, which a substrate may not support yet.
type kind string

const (
	plainFiles  kind = "plain files"
	times       kind = "times"
	holes       kind = "holes"
	punched     kind = "punched holes"
	hardLinks   kind = "hard links"
	movedDirs   kind = "moved directories"
	noMoves     kind = "renames to the same file"
	noDirMoves  kind = "renames to the same directory"
	setIDs      kind = "setuid and setgid files"
	exchanges   kind = "exchanges"
	specials    kind = "special files"
	xattrs      kind = "extended attributes"
	lists       kind = "access control lists"
	caps        kind = "capabilities"
	descriptors kind = "descriptors"
	users       kind = "users"
	unnamedTemp kind = "unnamed files"
)

// everyKind is all kinds.
var everyKind = []kind{plainFiles, times, holes, punched, hardLinks, movedDirs, noMoves, noDirMoves, setIDs, exchanges, specials, xattrs, lists, caps, descriptors,
	users, unnamedTemp}

// A generator makes random sequences. It performs each operation on the host, so that most of them
// have something to do.
type generator struct {
	*rand.Rand
	kinds map[kind]bool
	dir   fsops.Dir
	texts int
}

// newGenerator returns the generator of a seed.
func newGenerator(t testing.TB, seed uint64, kinds map[kind]bool) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 1)), kinds: kinds, dir: hostDir(t)}
}

// sequence makes a sequence of so many pieces.
func (g *generator) sequence(t testing.TB, pieces int) sequence {
	t.Helper()
	if got := g.dir.Do("begin"); got != "ok" {
		t.Fatal(got)
	}
	defer func() { _ = os.RemoveAll(string(g.dir)) }()
	s := make(sequence, pieces)
	for i := range s {
		for range g.IntN(14) {
			op := g.operation()
			if g.dir.Do(op) == "ENOENT" && g.IntN(8) > 0 {
				continue // most operations find their file
			}
			s[i] = append(s[i], op)
		}
	}
	return s
}

// A maker makes an operation, or "".
type maker struct {
	kind   kind
	weight int
	make   func(g *generator) string
}

// operation makes an operation of the generator's kinds.
func (g *generator) operation() string {
	total := 0
	for _, m := range makers {
		if g.kinds[m.kind] {
			total += m.weight
		}
	}
	for {
		n := g.IntN(total)
		for _, m := range makers {
			if !g.kinds[m.kind] {
				continue
			}
			if n -= m.weight; n < 0 {
				if op := m.make(g); op != "" {
					return op
				}
				break
			}
		}
	}
}

func pick[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

// there returns a path that exists and whose type is one of types, as ls shows it; if there is none,
// or now and then, any path.
func (g *generator) there(types string) string {
	var all []string
	_ = filepath.WalkDir(g.dir.Inside(), func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == g.dir.Inside() {
			return err
		}
		letter := "-"
		switch m := e.Type(); {
		case m.IsDir():
			letter = "d"
		case m&fs.ModeSymlink != 0:
			letter = "l"
		case m&fs.ModeNamedPipe != 0:
			letter = "p"
		case m&fs.ModeCharDevice != 0:
			letter = "c"
		}
		if strings.Contains(types, letter) {
			all = append(all, strings.TrimPrefix(path, g.dir.Inside()+"/"))
		}
		return nil
	})
	if len(all) == 0 || g.IntN(20) == 0 {
		return g.place()
	}
	return pick(g, all...)
}

// place returns a path in a directory that exists, up to three deep. There may be a file or not.
func (g *generator) place() string {
	path := ""
	for range g.IntN(3) {
		next := path + pick(g, "a", "b", "d", "e") + "/"
		if st, err := os.Lstat(g.dir.Inside() + "/" + next); err == nil && st.IsDir() {
			path = next
		}
	}
	return path + pick(g, "a", "b", "c", "d", "e")
}

func (g *generator) text() string {
	g.texts++
	return fmt.Sprintf("t%d", g.texts)
}

func (g *generator) isDir(path string) bool {
	st, err := os.Lstat(g.dir.Inside() + "/" + path)
	return err == nil && st.IsDir()
}

// rename makes an operation that renames.
func (g *generator) rename(how string) string {
	from, to := g.there("-dlpc"), g.place()
	if g.IntN(3) == 0 || how == "exchange" {
		to = g.there("-dlpc")
	}
	if !g.mayRename(from, to) || how == "exchange" && !g.mayRename(to, from) {
		return ""
	}
	return how + " " + from + " " + to
}

// mayRename reports whether the generator's kinds have the rename of a file.
func (g *generator) mayRename(from, to string) bool {
	moves, stays := plainFiles, noMoves
	if g.isDir(from) {
		moves, stays = movedDirs, noDirMoves
	}
	return g.kinds[moves] && (g.kinds[stays] || g.dir.Do("same "+from+" "+to) != "true")
}

const everyType = "-dlpc"

// makers are all operations, by kind.
var makers = []maker{
	{plainFiles, 8, func(g *generator) string { return "write " + pick(g, g.place(), g.there("-")) + " " + g.text() }},
	{plainFiles, 4, func(g *generator) string { return "append " + g.there("-l") + " " + g.text() }},
	{plainFiles, 2, func(g *generator) string { return "create " + g.place() + " " + g.text() }},
	{plainFiles, 2, func(g *generator) string {
		return pick(g, "truncate ", "ftruncate ") + g.there("-") + fmt.Sprint(" ", pick(g, 0, 1, 3, 5000))
	}},
	{plainFiles, 1, func(g *generator) string { return "map " + g.there("-") + " " + g.text() }},
	{plainFiles, 8, func(g *generator) string { return "mkdir " + g.place() + pick(g, " 0755", " 0755", " 0700", " 0777") }},
	{plainFiles, 1, func(g *generator) string { return "rmdir " + g.there("d") }},
	{plainFiles, 3, func(g *generator) string { return "unlink " + g.there(everyType) }},
	{plainFiles, 2, func(g *generator) string { return "rmall " + g.there(everyType) }},
	{plainFiles, 5, func(g *generator) string { return g.rename("rename") }},
	{plainFiles, 3, func(g *generator) string {
		return "symlink " + g.place() + " " + pick(g, "a", "b", "../a", "nowhere", "d/a")
	}},
	{plainFiles, 3, func(g *generator) string {
		return "chmod " + g.there("-dpc") + pick(g, " 0600", " 0644", " 0755", " 01755", " 0", " 0666")
	}},
	{plainFiles, 1, func(g *generator) string {
		path := g.there("d")
		if !g.isDir(path) {
			return ""
		}
		return "chmod " + path + pick(g, " 04755", " 02755")
	}},
	{setIDs, 3, func(g *generator) string { return "chmod " + g.there("-") + pick(g, " 04755", " 02755", " 06711") }},
	{plainFiles, 2, func(g *generator) string {
		return "chown " + g.there(everyType) + fmt.Sprint(" ", pick(g, 0, 1000, 1001), " ", pick(g, 0, 1000, 70000))
	}},
	{times, 4, func(g *generator) string { return fmt.Sprint("utimes ", g.there(everyType), " ", g.IntN(100)) }},
	{plainFiles, 3, func(g *generator) string { return "read " + g.there(everyType) }},
	{plainFiles, 2, func(g *generator) string { return "readdir " + pick(g, g.there("d"), ".") }},
	{plainFiles, 4, func(g *generator) string { return "stat " + g.there(everyType) }},
	{plainFiles, 1, func(g *generator) string { return "readlink " + g.there("l") }},
	{plainFiles, 2, func(g *generator) string { return "same " + g.there(everyType) + " " + g.there(everyType) }},
	{holes, 2, func(g *generator) string {
		return pick(g, "truncate ", "ftruncate ") + g.there("-") + pick(g, " 70000", " 1048576")
	}},
	{holes, 2, func(g *generator) string {
		return "at " + g.there("-") + pick(g, " 0 ", " 3 ", " 4096 ", " 100000 ") + g.text()
	}},
	{punched, 1, func(g *generator) string { return "punch " + g.there("-") + pick(g, " 0 4096", " 1 2") }},
	{hardLinks, 8, func(g *generator) string { return "link " + g.there("-lpc") + " " + g.place() }},
	{exchanges, 2, func(g *generator) string { return g.rename("exchange") }},
	{exchanges, 2, func(g *generator) string { return g.rename("noreplace") }},
	{specials, 3, func(g *generator) string { return "fifo " + g.place() + pick(g, " 0644", " 0666") }},
	{specials, 2, func(g *generator) string { return "char " + g.place() + " 0666 1 " + pick(g, "3", "5") }},
	{specials, 1, func(g *generator) string { return "block " + g.place() + " 0660 240 9" }},
	{specials, 2, func(g *generator) string { return "pass " + g.there("p") + " " + g.text() }},
	{specials, 2, func(g *generator) string { return "read " + g.there("pc") }},
	{xattrs, 4, func(g *generator) string {
		return "setx " + g.there("-d") + pick(g, " user.a ", " user.b ") + g.text()
	}},
	{xattrs, 1, func(g *generator) string { return "setx " + g.there("lpc") + " user.a " + g.text() }},
	{xattrs, 2, func(g *generator) string { return "rmx " + g.there("-d") + pick(g, " user.a", " user.b") }},
	{xattrs, 1, func(g *generator) string { return "getx " + g.there("-d") + pick(g, " user.a", " user.b") }},
	{xattrs, 1, func(g *generator) string { return "listx " + g.there(everyType) }},
	{caps, 2, func(g *generator) string {
		path := g.there("-")
		if g.isDir(path) { // a capability of no effect
			return ""
		}
		return "cap " + path
	}},
	{lists, 2, func(g *generator) string {
		return "acl " + g.there("-dpc") + " access " + pick(g, "u::6,u:1000:4,g::0,m::4,o::0", "u::7,g::5,g:1001:7,m::7,o::5",
			"u::6,g::4,o::4")
	}},
	{lists, 2, func(g *generator) string {
		return "acl " + g.there("d") + " default " + pick(g, "u::7,u:1000:7,g::5,m::7,o::0", "u::6,g::4,o::0")
	}},
	{lists, 2, func(g *generator) string {
		path, list := g.there("-dpc"), "system.posix_acl_"+pick(g, "access", "default")
		if !strings.Contains(g.dir.Do("listx "+path), list) { // file systems differ in the result
			return ""
		}
		return "rmx " + path + " " + list
	}},
	{descriptors, 4, func(g *generator) string { return "held " + g.there("-pc") + " " + g.text() }},
	{descriptors, 2, func(g *generator) string {
		path := g.there("-c")
		if strings.HasPrefix(g.dir.Do("stat "+path), "p") { // what it keeps differs
			return ""
		}
		return "heldgone " + path + " " + g.text()
	}},
	{descriptors, 2, func(g *generator) string {
		from := g.there("-")
		file := from
		if dir, _, in := strings.Cut(from, "/"); in && g.kinds[movedDirs] && g.IntN(2) == 0 {
			from = dir
		}
		to := g.place()
		if !g.mayRename(from, to) {
			return ""
		}
		return "heldmove " + file + " " + from + " " + to
	}},
	{unnamedTemp, 1, func(g *generator) string { return "temp " + g.place() + " " + g.text() }},
	{users, 6, func(g *generator) string {
		uid := pick(g, "as 1000 ", "as 1001 ")
		return uid + pick(g, "read "+g.there("-"), "append "+g.there("-")+" "+g.text(), "write "+g.place()+" "+g.text(),
			"mkdir "+g.place()+" 0755", "unlink "+g.there("-"), "access "+g.there(everyType)+pick(g, " 4", " 2", " 1"),
			"chmod "+g.there("-d")+" 0640", "readdir "+g.there("d"), "rename "+g.there("-")+" "+g.place(),
			"utimes "+g.there("-")+" 7", "getx "+g.there("-")+" user.a", "setx "+g.there("-")+" user.a "+g.text())
	}},
}
