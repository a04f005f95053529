package cuttest

import (
	"slices"
	"strings"
	"testing"
)

// known are sequences with their right results, of kinds that the cut between two turns has broken.
var known = map[string]struct {
	kinds []kind // that it has
	text  string
}{
	"a new name for a file of two earlier ones": {[]kind{hardLinks}, `
		write a 1
		link a b
		--
		link a c
		append c 2
		read a => "12"
		read b => "12"
		stat b => -0644 0:0 size=2 names=3 recent
		--
		chmod b 0600
		stat a => -0600 0:0 size=2 names=3 recent
		stat c => -0600 0:0 size=2 names=3 recent
		same a c => true`},
	"a write through one name": {[]kind{hardLinks}, `
		write a 1
		link a b
		--
		write b new
		read a => "new"
		same a b => true
		--
		stat a => -0644 0:0 size=3 names=2 recent`},
	"a mode through one name": {[]kind{hardLinks}, `
		write a 1
		link a b
		--
		chmod a 0600
		stat b => -0600 0:0 size=1 names=2 recent`},
	"an owner through one name": {[]kind{hardLinks}, `
		write a 1
		link a b
		--
		chown b 1000 1001
		stat a => -0644 1000:1001 size=1 names=2 recent`},
	"times through one name": {[]kind{hardLinks, times}, `
		write a 1
		link a b
		--
		utimes a 3
		stat b => -0644 0:0 size=1 names=2 1000300000.123456789`},
	"an attribute through one name": {[]kind{hardLinks, xattrs}, `
		write a 1
		link a b
		--
		setx a user.a v
		getx b user.a => "v"`},
	"one of three names removed": {[]kind{hardLinks}, `
		write a 1
		link a b
		link a c
		--
		unlink b
		stat a => -0644 0:0 size=1 names=2 recent
		append c 2
		read a => "12"`},
	"all names but one removed": {[]kind{hardLinks}, `
		write a 1
		link a b
		--
		unlink a
		stat b => -0644 0:0 size=1 names=1 recent
		--
		append b 2
		read b => "12"
		stat b => -0644 0:0 size=2 names=1 recent`},
	"one name renamed": {[]kind{hardLinks}, `
		write a 1
		link a b
		--
		rename a c
		append c 2
		read b => "12"
		same b c => true`},
	"one name renamed onto the other": {[]kind{hardLinks, noMoves}, `
		write a 1
		link a b
		--
		rename a b => ok
		same a b => true`},
	"a directory renamed to itself": {[]kind{noDirMoves}, `
		mkdir d 0755
		write d/a x
		rename d d => ok
		--
		rename d d => ok
		readdir d => [a]`},
	"one name replaced": {[]kind{hardLinks}, `
		write a 1
		link a b
		--
		write c other
		rename c a
		read b => "1"
		stat b => -0644 0:0 size=1 names=1 recent`},
	"names in several directories": {[]kind{hardLinks}, `
		mkdir d 0755
		mkdir e 0755
		write d/a 1
		link d/a e/b
		--
		append e/b 2
		read d/a => "12"
		--
		rmall d
		stat e/b => -0644 0:0 size=2 names=1 recent`},
	"names of a symbolic link": {[]kind{hardLinks}, `
		symlink a nowhere
		link a b
		--
		chown b 1000 1000
		stat a => l0777 1000:1000 size=7 names=2 recent
		same a b => true`},
	"a descriptor of one name, written through another": {[]kind{hardLinks, descriptors}, `
		write a 1
		link a b
		--
		held a 2 => "12" size=2 names=2
		read b => "12"`},
	"a directory with two names of one file, renamed": {[]kind{movedDirs, hardLinks}, `
		mkdir d 0755
		mkdir d/e 0755
		write d/e/a x
		link d/e/a d/e/b
		--
		rename d c => ok
		append c/e/a y
		read c/e/b => "xy"
		same c/e/a c/e/b => true`},
	"a directory renamed": {[]kind{movedDirs, times}, `
		mkdir d 0700
		mkdir d/e 0750
		write d/e/a x
		symlink d/l e/a
		utimes d/e/a 4
		utimes d/e 5
		utimes d 6
		--
		rename d c => ok
		readdir c => [e/ l@]
		read c/l => "x"
		stat c => d0700 0:0 1000600000.123456789
		stat c/e => d0750 0:0 1000500000.123456789
		stat c/e/a => -0644 0:0 size=1 names=1 1000400000.123456789
		stat d => ENOENT
		--
		rename c/e b => ok
		readdir b => [a]
		readdir c => [l@]`},
	"a directory renamed into another": {[]kind{movedDirs}, `
		mkdir d 0755
		mkdir e 0755
		write d/a x
		--
		rename d e/d => ok
		read e/d/a => "x"
		rename e e/d/e => EINVAL
		readdir . => [e/]`},
	"a directory renamed over another": {[]kind{movedDirs}, `
		mkdir d 0755
		mkdir e 0755
		mkdir c 0755
		write d/a x
		write c/a y
		--
		rename d c => ENOTEMPTY
		rename d e => ok
		readdir e => [a]
		rename c e => ENOTEMPTY
		unlink e/a
		rename c e => ok
		readdir . => [e/]
		read e/a => "y"`},
	"a directory renamed and made anew": {[]kind{movedDirs}, `
		mkdir d 0755
		write d/a x
		--
		rename d c => ok
		mkdir d 0755 => ok
		readdir d => []
		write d/b y
		--
		readdir d => [b]
		readdir c => [a]`},
	"a directory with changes renamed": {[]kind{movedDirs}, `
		mkdir d 0755
		write d/a x
		write d/b y
		mkdir d/e 0755
		write d/e/c z
		--
		unlink d/a
		append d/b y
		rename d c => ok
		readdir c => [b e/]
		read c/b => "yy"
		read c/e/c => "z"`},
	"directories exchanged": {[]kind{movedDirs, exchanges}, `
		mkdir d 0755
		write d/a x
		mkdir e 0755
		write e/b y
		--
		exchange d e => ok
		readdir d => [b]
		readdir e => [a]`},
	"a directory that moves below a descriptor": {[]kind{movedDirs, descriptors}, `
		mkdir d 0755
		write d/a xxxxxxx
		--
		heldmove d/a d c => size=7 names=1
		read c/a => "movedxx"`},
	"a FIFO": {[]kind{specials}, `
		fifo a 0666
		--
		stat a => p0644 0:0 names=1
		pass a x => "x"
		--
		chmod a 0600
		pass a y => "y"
		stat a => p0600 0:0 names=1`},
	"devices": {[]kind{specials}, `
		char a 0666 1 3
		char b 0666 1 5
		block c 0660 240 9
		--
		read a => ""
		write a x => ok
		stat a => c0644 0:0 1:3 names=1
		read b => no end, "\x00" first
		stat c => b0640 0:0 240:9 names=1
		--
		chmod b 0600
		read b => no end, "\x00" first`},
	"names of a FIFO": {[]kind{specials, hardLinks}, `
		fifo a 0600
		link a b
		--
		chmod a 0644
		stat b => p0644 0:0 names=2
		same a b => true`},
	"a list that gives the group nothing": {[]kind{lists, users}, `
		write a pay
		chown a 0 1000
		acl a access u::6,u:65534:4,g::0,m::4,o::0
		--
		getx a system.posix_acl_access => u::6,u:65534:4,g::0,m::4,o::0
		stat a => -0640 0:1000 size=3 names=1 recent
		as 1000 read a => EACCES
		as 65534 read a => "pay"
		as 65534 append a x => EACCES`},
	"a list changed by a mode": {[]kind{lists, users}, `
		write a x
		acl a access u::6,u:1000:6,g::4,m::6,o::4
		--
		chmod a 0640
		getx a system.posix_acl_access => u::6,u:1000:6,g::4,m::4,o::0
		as 1000 append a y => EACCES
		as 1000 read a => "x"`},
	"a list changed in the turn after": {[]kind{lists, users}, `
		write a x
		acl a access u::6,u:1000:6,g::4,m::6,o::4
		--
		acl a access u::6,u:1000:4,g::4,m::4,o::4
		as 1000 append a y => EACCES
		--
		rmx a system.posix_acl_access
		stat a => -0644 0:0 size=1 names=1 recent
		listx a => []`},
	"a list that new files inherit": {[]kind{lists, users}, `
		mkdir d 0755
		acl d default u::7,u:1000:6,g::5,m::7,o::0
		--
		write d/a x
		stat d/a => -0660 0:0 size=1 names=1 recent
		as 1000 read d/a => "x"
		as 1001 read d/a => EACCES
		acl d access u::7,u:1000:0,g::5,m::5,o::5
		as 1000 read d/a => EACCES
		mkdir d/e 0755
		getx d/e system.posix_acl_default => u::7,u:1000:6,g::5,m::7,o::0`},
	"attributes of files and directories": {[]kind{xattrs}, `
		write a x
		mkdir d 0755
		setx a user.a 1
		setx d user.b 2
		--
		listx a => [user.a]
		getx d user.b => "2"
		setx a user.b 3
		--
		rmx a user.a
		listx a => [user.b]
		getx a user.a => ENODATA`},
	"a capability": {[]kind{caps}, `
		write a x
		cap a
		--
		listx a => [security.capability]
		append a y
		listx a => []`},
	"holes": {[]kind{holes}, `
		write a x
		truncate a 1048576
		at a 524288 y
		--
		read a => "x(524287 zeros)y(524287 zeros)"
		truncate a 524289
		--
		truncate a 2000000
		read a => "x(524287 zeros)y(1475711 zeros)"`},
	"punched holes": {[]kind{punched}, `
		write a 0123456789
		truncate a 200000
		--
		punch a 2 3
		read a => "01(3 zeros)56789(199990 zeros)"
		punch a 65536 65536
		stat a => -0644 0:0 size=200000 names=1 recent`},
	"files exchanged": {[]kind{exchanges}, `
		write a 1
		write b 2
		symlink c a
		--
		exchange a b => ok
		read a => "2"
		read c => "2"
		noreplace a b => EEXIST
		noreplace a d => ok
		readdir . => [b c@ d]`},
	"setuid, setgid and sticky": {[]kind{setIDs}, `
		write a x
		chmod a 06755
		mkdir d 0755
		chmod d 03755
		--
		stat a => -6755 0:0 size=1 names=1 recent
		stat d => d3755 0:0 recent
		append a y
		stat a => -6755 0:0 size=2 names=1 recent
		chown a 1000 1000
		stat a => -0755 1000:1000 size=2 names=1 recent`},
	"times": {[]kind{times}, `
		write a x
		symlink l a
		mkdir d 0755
		write d/a x
		utimes a 1
		utimes l 2
		utimes d 3
		--
		stat a => -0644 0:0 size=1 names=1 1000100000.123456789
		stat l => l0777 0:0 size=1 names=1 1000200000.123456789
		stat d => d0755 0:0 1000300000.123456789
		append d/a y
		stat d => d0755 0:0 1000300000.123456789
		chmod a 0600
		stat a => -0600 0:0 size=1 names=1 1000100000.123456789
		append a y
		stat a => -0600 0:0 size=2 names=1 recent`},
	"a directory over a file, and a file over a directory": {[]kind{plainFiles}, `
		write a x
		mkdir d 0755
		write d/a y
		--
		unlink a
		mkdir a 0700
		write a/b z
		rmall d
		write d w
		--
		readdir . => [a/ d]
		readdir a => [b]
		read d => "w"`},
	"a directory removed and made anew": {[]kind{plainFiles}, `
		mkdir d 0755
		write d/a y
		mkdir d/e 0755
		write d/e/a y
		--
		rmall d
		mkdir d 0700
		mkdir d/e 0755
		readdir d/e => []
		--
		readdir d => [e/]
		rmdir d/e => ok
		rmdir d => ok
		mkdir d 0755
		readdir d => []`},
	"a file without a name": {[]kind{unnamedTemp}, `
		temp a x
		--
		temp a y => EEXIST
		temp b y => ok
		stat b => -0640 0:0 size=1 names=1 recent`},
	"an open file": {[]kind{descriptors}, `
		write a 1
		write b 2
		write c 3
		--
		held a x => "1x" size=2 names=1
		heldgone b y => "2y" names=0
		heldmove c c d => size=5 names=1
		readdir . => [a d]`},
}

// TestKnownCuts performs the known sequences, in one turn and in several.
//
//testrun:qemu
func TestKnownCuts(t *testing.T) {
	w := newWorld(t, shared...)
	var names []string
	var of []sequence
	wants := map[int]map[int]string{}
	for name, c := range known {
		if slices.ContainsFunc(c.kinds, func(k kind) bool { return !w.supports(k) }) {
			continue
		}
		s, want := parseSequence(c.text)
		wants[len(of)] = want
		names, of = append(names, name), append(of, s)
	}
	for i, s := range of {
		host := onHost(t, s)
		for j, want := range wants[i] {
			if got := host.results[j]; got != want {
				t.Errorf("%s: %s: the host says %s, the table %s", names[i], s.ops()[j], got, want)
			}
		}
	}
	found, hashes := w.differences(of, onAState)
	for _, d := range found {
		t.Errorf("%s: %s\n%s", names[d.of], d, indented(of[d.of].String()))
	}
	if len(found) == 0 && hashes[0] != hashes[1] {
		t.Errorf("FS hash %s in one turn, %s in several", hashes[0], hashes[1])
	}
}

// TestSequenceTexts: a text of the table is the sequence that it looks like.
func TestSequenceTexts(t *testing.T) {
	s, want := parseSequence("\n\t\twrite a 1\n\t\t--\n\t\tread a => \"1\"")
	if got := s.String(); got != "write a 1\n--\nread a" || want[1] != `"1"` || len(want) != 1 {
		t.Errorf("%q, %v", got, want)
	}
	if got := s.joined(0).padded(2).without(0, 1).String(); strings.Join(strings.Fields(got), " ") != "read a --" {
		t.Errorf("%q", got)
	}
}
