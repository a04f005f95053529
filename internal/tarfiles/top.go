package tarfiles

import (
	"errors"
	"path"
	"strings"

	"turnstone.dev/turnstone"
)

// A Top is the top-level name that a stream may have, so that whoever sends the stream writes nothing
// beside what was asked for: the destination is often a folder of the user, with other files. The zero
// value allows none.
type Top struct {
	name string
	any  bool
}

// Any allows all names: for streams that the caller has made, and folders that have nothing else in
// them.
func Any() Top { return Top{any: true} }

// TopOf allows the name of a path of a sandbox, as an agent packs it. The error is of kind Invalid: the
// path has no name of its own, such as /.
func TopOf(name string) (Top, error) {
	base := strings.TrimRight(name, "/")
	base = base[strings.LastIndexByte(base, '/')+1:]
	if base == "" || base == "." || base == ".." {
		return Top{}, turnstone.NewError("archive.unpack", turnstone.KindInvalid, name,
			errors.New("the path has no name of its own")).
			WithHint("name the file or folder itself")
	}
	return Top{name: base}, nil
}

// TopInState allows the name of a path of a turn's state, as repo.Repo.Pack packs it.
func TopInState(name string) Top {
	if base := path.Base(path.Clean("/" + name)); base != "/" {
		return Top{name: base}
	}
	return Top{name: "root"} // the whole state
}

// allows reports whether a stream may have a top-level name.
func (t Top) allows(name string) bool { return t.any || t.name != "" && name == t.name }
