package oci

import (
	"strconv"
	"strings"
)

// ids are a user's numeric IDs.
type ids struct{ uid, gid int }

// user finds the numeric IDs of an image's User: a name or a number, with an optional group after a
// colon. A name must be in the image's /etc/passwd, as docker requires.
func (t *fsTree) user(user string) (ids, error) {
	name, group, withGroup := strings.Cut(user, ":")
	if name == "" {
		name = "0"
	}
	fields, found := t.account("etc/passwd", name)
	var out ids
	var err error
	switch {
	case found:
		out.uid, err = number(fields, 2)
		if err == nil {
			out.gid, err = number(fields, 3)
		}
	default:
		out.uid, err = number([]string{name}, 0)
	}
	if err != nil {
		return out, unusable("", "it runs as the user %.80q, who is not in its /etc/passwd", name)
	}
	if !withGroup || group == "" {
		return out, nil
	}
	if fields, found := t.account("etc/group", group); found {
		out.gid, err = number(fields, 2)
	} else {
		out.gid, err = number([]string{group}, 0)
	}
	if err != nil {
		return out, unusable("",
			"it runs as the group %.80q, which is not in its /etc/group", group)
	}
	return out, nil
}

// account finds a line of passwd(5) or group(5), by name or by number.
func (t *fsTree) account(file, who string) (fields []string, found bool) {
	n := t.lookup(file)
	if n == nil {
		return nil, false
	}
	for line := range strings.Lines(string(n.file.kept)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) > 2 && (f[0] == who || f[2] == who) {
			return f, true
		}
	}
	return nil, false
}

func number(fields []string, i int) (int, error) {
	if i >= len(fields) {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseUint(fields[i], 10, 31)
	return int(n), err
}
