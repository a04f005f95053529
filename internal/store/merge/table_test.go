package merge

// Long enough that an edited text stays similar.
const (
	poem   = `"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"`
	poem1  = `"ONE\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"`
	poem8  = `"one\ntwo\nthree\nfour\nfive\nsix\nseven\nEIGHT\n"`
	poem18 = `"ONE\ntwo\nthree\nfour\nfive\nsix\nseven\nEIGHT\n"`
)

var mergeCases = []mergeCase{
	// A single side, or the same on both.
	{name: "changed by one", base: `a "1"`, ours: `a "2"`, theirs: `a "1"`, want: `a "2"`},
	{name: "added by one", base: ``, ours: `a "1"`, theirs: ``, want: `a "1"`},
	{name: "deleted by one", base: "a \"1\"\nb \"1\"", ours: `b "1"`, theirs: "a \"1\"\nb \"1\"", want: `b "1"`},
	{name: "changed alike", base: `a "1"`, ours: `a "2"`, theirs: `a "2"`, want: `a "2"`},
	{name: "added alike", base: ``, ours: `a "1"`, theirs: `a "1"`, want: `a "1"`},
	{name: "deleted by both", base: "a \"1\"\nb \"1\"", ours: `b "1"`, theirs: `b "1"`, want: `b "1"`},
	{name: "type changed by one", base: `a "1"`, ours: `a ->b`, theirs: `a "1"`, want: `a ->b`},
	{name: "different files changed", base: "a \"1\"\nb \"1\"", ours: "a \"2\"\nb \"1\"", theirs: "a \"1\"\nb \"2\"", want: "a \"2\"\nb \"2\""},
	{name: "timestamps", base: `a "1" t=1`, ours: `a "1" t=3`, theirs: `a "1" t=2`, want: `a "1" t=3`},
	{name: "timestamp and content", base: `a "1" t=1`, ours: `a "1" t=9`, theirs: `a "2" t=2`, want: `a "2" t=9`},
	{name: "touched and deleted", base: "a \"1\" t=1\nb \"\"", ours: "a \"1\" t=9\nb \"\"", theirs: `b ""`, want: `b ""`},

	// Content.
	{name: "different lines", base: `a ` + poem, ours: `a ` + poem1, theirs: `a ` + poem8, want: `a ` + poem18},
	{name: "the same lines", base: `a "1\n2\n3\n"`, ours: `a "1\nx\n3\n"`, theirs: `a "1\ny\n3\n"`, conflicts: []string{"a content"}},
	{name: "lines next to each other", base: `a "1\n2\n3\n"`, ours: `a "x\n2\n3\n"`, theirs: `a "1\ny\n3\n"`, conflicts: []string{"a content"}},
	{name: "binary", base: `a "1\n\x002\n"`, ours: `a "x\n\x002\n"`, theirs: `a "1\n\x00y\n"`, conflicts: []string{"a content"}},
	{name: "not UTF-8", base: `a "1\n2\n3\n"`, ours: `a "\xff\n2\n3\n"`, theirs: `a "1\n2\ny\n"`, conflicts: []string{"a content"}},
	{name: "added differently", base: ``, ours: `a "1\n"`, theirs: `a "2\n"`, conflicts: []string{"a add/add"}},
	{name: "no base", base: `none`, ours: "a \"1\"\nb \"1\"", theirs: "a \"1\"\nc \"1\"", want: "a \"1\"\nb \"1\"\nc \"1\""},
	{name: "no base, different", base: `none`, ours: `a "1\n"`, theirs: `a "2\n"`, conflicts: []string{"a add/add"}},

	// Attributes.
	{name: "mode and content", base: `a "1"`, ours: `a "1" mode=0755`, theirs: `a "2"`, want: `a "2" mode=0755`},
	{name: "mode, differently", base: `a "1"`, ours: `a "1" mode=0755`, theirs: `a "1" mode=0600`, conflicts: []string{"a mode"}},
	{name: "mode and owner", base: `a "1"`, ours: `a "1" mode=0755`, theirs: `a "1" uid=5`, want: `a "1" mode=0755 uid=5`},
	{name: "owner, differently", base: `a "1"`, ours: `a "1" uid=5`, theirs: `a "1" uid=6`, conflicts: []string{"a owner"}},
	{name: "user and group", base: `a "1"`, ours: `a "1" uid=5`, theirs: `a "1" gid=6`, want: `a "1" uid=5 gid=6`},
	{name: "different xattrs", base: `a "1" x:user.a=1`, ours: `a "1" x:user.a=2`, theirs: `a "1" x:user.a=1 x:user.b=1`, want: `a "1" x:user.a=2 x:user.b=1`},
	{name: "the same xattr", base: `a "1" x:user.a=1`, ours: `a "1" x:user.a=2`, theirs: `a "1" x:user.a=3`, conflicts: []string{"a xattr"}},
	{name: "xattr deleted and changed", base: `a "1" x:user.a=1`, ours: `a "1"`, theirs: `a "1" x:user.a=3`, conflicts: []string{"a xattr"}},
	{name: "mode of a directory", base: "d dir\nd/a \"1\"", ours: "d dir mode=0700\nd/a \"1\"", theirs: "d/a \"2\"", want: "d dir mode=0700\nd/a \"2\""},
	{name: "mode of a directory, differently", base: "d dir", ours: "d dir mode=0700", theirs: "d dir mode=0750", conflicts: []string{"d mode"}},
	{name: "added alike, with different modes", base: ``, ours: `a "1"`, theirs: `a "1" mode=0755`, conflicts: []string{"a mode"}},
	{name: "content and mode, differently", base: `a "1"`, ours: `a "2" mode=0755`, theirs: `a "3" mode=0600`, conflicts: []string{"a content", "a mode"}},

	// Deletions.
	{name: "changed and deleted", base: "a \"1\"\nb \"\"", ours: "a \"2\"\nb \"\"", theirs: `b ""`, conflicts: []string{"a modify/delete"}},
	{name: "mode changed and deleted", base: "a \"1\"\nb \"\"", ours: "a \"1\" mode=0755\nb \"\"", theirs: `b ""`, conflicts: []string{"a modify/delete"}},
	{name: "directory deleted, file in it changed", base: "d/a \"1\"\nd/b \"1\"\nz \"\"", ours: "d/a \"2\"\nd/b \"1\"\nz \"\"", theirs: `z ""`, conflicts: []string{"d/a modify/delete"}},
	{name: "directory deleted, file in it added", base: "d/a \"1\"\nz \"\"", ours: "d/a \"1\"\nd/n \"1\"\nz \"\"", theirs: `z ""`, want: "d/n \"1\"\nz \"\""},
	{name: "directory deleted, its mode changed", base: "d dir\nz \"\"", ours: "d dir mode=0700\nz \"\"", theirs: `z ""`, conflicts: []string{"d modify/delete"}},
	{name: "directory deleted, file in it deleted", base: "d/a \"1\"\nd/b \"1\"\nz \"\"", ours: "d/b \"1\"\nz \"\"", theirs: `z ""`, want: `z ""`},
	{name: "empty directory added", base: `z ""`, ours: "d dir\nz \"\"", theirs: `z ""`, want: "d dir\nz \"\""},

	// Types.
	{name: "directory against file, both new", base: ``, ours: `a/b "1"`, theirs: `a "1"`, conflicts: []string{"a directory/file"}},
	{name: "file became directory, unchanged", base: `a "1"`, ours: `a/b "1"`, theirs: `a "1"`, want: `a/b "1"`},
	{name: "file became directory, changed", base: `a "1"`, ours: `a/b "x"`, theirs: `a "2"`, conflicts: []string{"a directory/file"}},
	{name: "directory became file, unchanged", base: `a/b "1"`, ours: `a "1"`, theirs: `a/b "1"`, want: `a "1"`},
	{name: "directory became file, changed", base: `a/b "1"`, ours: `a "1"`, theirs: `a/b "2"`, conflicts: []string{"a file/directory"}},
	{name: "types, differently", base: `a "1"`, ours: `a ->b`, theirs: `a fifo`, conflicts: []string{"a type"}},
	{name: "type against content", base: `a "1"`, ours: `a ->b`, theirs: `a "2"`, conflicts: []string{"a type"}},
	{name: "type against deletion", base: "a \"1\"\nz \"\"", ours: "a ->b\nz \"\"", theirs: `z ""`, conflicts: []string{"a modify/delete"}},
	{name: "symlink retargeted by one", base: `a ->x`, ours: `a ->y`, theirs: `a ->x`, want: `a ->y`},
	{name: "symlink retargeted by both", base: `a ->x`, ours: `a ->y`, theirs: `a ->z`, conflicts: []string{"a symlink"}},
	{name: "symlinks added", base: ``, ours: `a ->y`, theirs: `a ->z`, conflicts: []string{"a add/add"}},
	{name: "device numbers", base: `a char:1,3`, ours: `a char:1,5`, theirs: `a char:1,8`, conflicts: []string{"a device"}},
	{name: "device mode", base: `a char:1,3`, ours: `a char:1,5`, theirs: `a char:1,3 mode=0666`, want: `a char:1,5 mode=0666`},
	{name: "fifo added by both", base: ``, ours: `a fifo`, theirs: `a fifo`, want: `a fifo`},

	// Renames.
	{name: "renamed by one", base: `a ` + poem, ours: `b ` + poem, theirs: `a ` + poem, want: `b ` + poem},
	{name: "renamed and changed", base: `a ` + poem, ours: `b ` + poem, theirs: `a ` + poem8, want: `b ` + poem8, renames: []string{"a b ours"}},
	{name: "renamed with a change, and changed", base: `a ` + poem, ours: `d/b ` + poem1, theirs: `a ` + poem8, want: `d/b ` + poem18, renames: []string{"a d/b ours"}},
	{name: "renamed, mode changed", base: `a ` + poem, ours: `b ` + poem, theirs: `a ` + poem + ` mode=0755`, want: `b ` + poem + ` mode=0755`, renames: []string{"a b ours"}},
	{name: "renamed and changed on the same line", base: `a ` + poem, ours: `b ` + poem1, theirs: `a "uno\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"`, conflicts: []string{"b content"}, renames: []string{"a b ours"}},
	{name: "renamed alike, both changed", base: `a ` + poem, ours: `b ` + poem1, theirs: `b ` + poem8, want: `b ` + poem18, renames: []string{"a b both"}},
	{name: "too different for a rename", base: `a "1\n2\n3\n"`, ours: `b "x\ny\nz\n1\n"`, theirs: `a "1\n2\n3\n4\n"`, conflicts: []string{"a delete/modify"}},
	{name: "renamed to two names", base: `a ` + poem, ours: `b ` + poem, theirs: `c ` + poem, conflicts: []string{"a rename/rename(1to2)"}},
	{name: "two renamed to one name", base: "a " + poem + "\nb \"z\\n\"", ours: "c " + poem + "\nb \"y\\n\"", theirs: "a \"1\\n\"\nc \"z\\n\"", conflicts: []string{"a delete/modify", "b modify/delete", "c rename/rename(2to1)"}},
	{name: "renamed and deleted", base: "a " + poem + "\nz \"\"", ours: "b " + poem + "\nz \"\"", theirs: `z ""`, conflicts: []string{"b rename/delete"}, renames: []string{"a b ours"}},
	{name: "renamed and deleted, out of directories that are equal", base: "d/a " + poem + "\nd/z \"\"", ours: "b " + poem + "\nd/z \"\"", theirs: `d/z ""`, conflicts: []string{"b rename/delete"}, renames: []string{"d/a b ours"}},
	{name: "renamed to a name that is taken", base: `a ` + poem, ours: `b ` + poem, theirs: "a " + poem8 + "\nb \"else\\n\"", conflicts: []string{"a delete/modify", "b rename/add"}},
	{name: "renamed into a new directory of its name", base: `a ` + poem, ours: `a/a ` + poem, theirs: `a ` + poem8, want: `a/a ` + poem8, renames: []string{"a a/a ours"}},
	{name: "renamed into a directory that is deleted", base: "a " + poem + "\nd/x \"1\"", ours: "d/x \"1\"\nd/a " + poem, theirs: "a " + poem8, want: "d/a " + poem8, renames: []string{"a d/a ours"}},
	{name: "directory renamed, file in it changed", base: "d/a " + poem + "\nd/b \"22\"", ours: "e/a " + poem + "\ne/b \"22\"", theirs: "d/a " + poem8 + "\nd/b \"22\"", want: "e/a " + poem8 + "\ne/b \"22\"", renames: []string{"d/a e/a ours"}},
	{name: "directory renamed, file in it added", base: "d/a " + poem, ours: "e/a " + poem, theirs: "d/a " + poem + "\nd/n \"1\"", want: "d/n \"1\"\ne/a " + poem},

	// Names of a file.
	{name: "link added by one", base: `a "1"`, ours: "a \"1\"\nb =a", theirs: `a "1"`, want: "a \"1\"\nb =a"},
	{name: "link added, content changed", base: `a "1"`, ours: "a \"1\"\nb =a", theirs: `a "2"`, want: "a \"2\"\nb =a"},
	{name: "links added by both", base: `a "1"`, ours: "a \"1\"\nb =a", theirs: "a \"1\"\nc =a", want: "a \"1\"\nb =a\nc =a"},
	{name: "link removed by one", base: "a \"1\"\nb =a\nc =a", ours: "a \"1\"\nb =a", theirs: "a \"1\"\nb =a\nc =a", want: "a \"1\"\nb =a"},
	{name: "link cut by one", base: "a \"1\"\nb =a", ours: "a \"1\"\nb \"1\"", theirs: "a \"1\"\nb =a", want: "a \"1\"\nb \"1\""},
	{name: "link cut, content changed", base: "a \"1\"\nb =a", ours: "a \"1\"\nb \"3\"", theirs: "a \"2\"\nb =a", conflicts: []string{"b content"}},
	{name: "linked by one, one of them changed", base: "a \"1\"\nb \"2\"", ours: "a \"1\"\nb =a", theirs: "a \"3\"\nb \"2\"", conflicts: []string{"a links"}},
	{name: "linked file renamed and changed", base: "a " + poem + "\nb =a", ours: "b " + poem + "\nc =b", theirs: "a " + poem8 + "\nb =a", want: "b " + poem8 + "\nc =b", renames: []string{"a c ours"}},

	// Decisions.
	{name: "decided for ours", base: `a "1\n"`, ours: `a "2\n"`, theirs: `a "3\n"`, opts: Options{Default: Ours}, want: `a "2\n"`, resolved: []string{"a content ours"}},
	{name: "decided for theirs", base: `a "1\n"`, ours: `a "2\n"`, theirs: `a "3\n"`, opts: Options{Default: Theirs}, want: `a "3\n"`, resolved: []string{"a content theirs"}},
	{name: "a deletion decided for", base: "a \"1\"\nb \"\"", ours: "a \"2\"\nb \"\"", theirs: `b ""`, opts: Options{Default: Theirs}, want: `b ""`, resolved: []string{"a modify/delete theirs"}},
	{name: "decided by path", base: "a \"1\\n\"\nb \"1\\n\"", ours: "a \"2\\n\"\nb \"2\\n\"", theirs: "a \"3\\n\"\nb \"3\\n\"", opts: Options{Paths: map[string]Side{"/a": Theirs}, Default: Ours},
		want: "a \"3\\n\"\nb \"2\\n\"", resolved: []string{"a content theirs", "b content ours"}},
	{name: "decided by directory", base: "d/a \"1\\n\"\nb \"1\\n\"", ours: "d/a \"2\\n\"\nb \"2\\n\"", theirs: "d/a \"3\\n\"\nb \"3\\n\"", opts: Options{Paths: map[string]Side{"/d": Theirs}},
		conflicts: []string{"b content"}, resolved: []string{"d/a content theirs"}},
	{name: "markers", base: `a "1\n2\n3\n"`, ours: `a "1\nx\n3\n"`, theirs: `a "1\ny\n3\n"`, opts: Options{Markers: true, OursName: "main", TheirsName: "explore"},
		want: `a "1\n<<<<<<< main\nx\n||||||| base\n2\n=======\ny\n>>>>>>> explore\n3\n"`, resolved: []string{"a content markers"}},
	{name: "markers, nothing in common", base: ``, ours: `a "x\n"`, theirs: `a "y\n"`, opts: Options{Markers: true},
		want: `a "<<<<<<< ours\nx\n||||||| base\n=======\ny\n>>>>>>> theirs\n"`, resolved: []string{"a add/add markers"}},
	{name: "markers, binary", base: `a "\x001"`, ours: `a "\x002"`, theirs: `a "\x003"`, opts: Options{Markers: true}, conflicts: []string{"a content"}},
	{name: "markers, no text at all", base: `a ->x`, ours: `a ->y`, theirs: `a ->z`, opts: Options{Markers: true}, conflicts: []string{"a symlink"}},
	{name: "markers for some, a side for the rest", base: "a \"1\\n\"\nb ->x", ours: "a \"2\\n\"\nb ->y", theirs: "a \"3\\n\"\nb ->z", opts: Options{Markers: true, Default: Theirs},
		want: "a \"<<<<<<< ours\\n2\\n||||||| base\\n1\\n=======\\n3\\n>>>>>>> theirs\\n\"\nb ->z", resolved: []string{"a content markers", "b symlink theirs"}},
	{name: "two names, decided", base: `a ` + poem, ours: `b ` + poem1, theirs: `c ` + poem8, opts: Options{Paths: map[string]Side{"/a": Theirs}},
		want: `c ` + poem18, resolved: []string{"a rename/rename(1to2) theirs"}, renames: []string{"a c theirs"}},
	{name: "a directory against a file, decided", base: `a "1"`, ours: `a/b "x"`, theirs: `a "2"`, opts: Options{Default: Ours}, want: `a/b "x"`, resolved: []string{"a directory/file ours"}},
	{name: "links decided", base: "a \"1\"\nb \"2\"", ours: "a \"1\"\nb =a", theirs: "a \"3\"\nb \"2\"", opts: Options{Default: Theirs}, want: "a \"3\"\nb \"2\"", resolved: []string{"a links theirs"}},
}
