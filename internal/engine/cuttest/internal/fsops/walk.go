package fsops

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// walk describes all files below a directory, a line each.
func walk(d Dir, _ []string) (string, error) {
	var lines []string
	first := map[[2]uint64]string{} // of the names of a file
	err := filepath.WalkDir(string(d), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, string(d)), "/")
		line, err := file(path, name, first)
		lines = append(lines, line)
		return err
	})
	return strings.Join(lines, "\n"), err
}

// file describes a file with its content and its attributes, or says which earlier one it is.
func file(path, name string, first map[[2]uint64]string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", err
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR {
		id := [2]uint64{st.Dev, st.Ino}
		if of, found := first[id]; found {
			return fmt.Sprintf("%s is %s", name, of), nil
		}
		first[id] = name
	}
	line := fmt.Sprintf("%s %s", name, describe(&st))
	switch kind {
	case unix.S_IFREG, unix.S_IFLNK:
		of := contentOf
		if kind == unix.S_IFLNK {
			of = targetOf
		}
		text, err := of(path)
		if err != nil {
			return line, err
		}
		line += " " + text
	}
	names, err := xattrNames(path)
	if err != nil {
		return line, fmt.Errorf("%s: %w", name, err)
	}
	for _, n := range names {
		value, err := xattr(path, n)
		if err != nil {
			return line, err
		}
		line += " " + n + "=" + value
	}
	return line, nil
}

// Perform performs the lines of in, each an operation after the name of a folder of dir, and writes
// each result to out as a JSON string.
func Perform(dir string, in io.Reader, out io.Writer) error {
	unix.Umask(Mask)
	w := bufio.NewWriter(out)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		folder, line, _ := strings.Cut(lines.Text(), " ")
		if err := json.NewEncoder(w).Encode(Dir(filepath.Join(dir, folder)).Do(line)); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return w.Flush()
}
