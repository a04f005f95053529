package backup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/session"
)

// needsDump returns an error of kind Invalid if sessions of the state directory root, or of its
// tenants in dirs, or the records of its controller are in a PostgreSQL database: a copy of files does
// not have them, and has to be younger than the dump that has.
func (o *Options) needsDump(dirs []string) error {
	if o.Dumped {
		return nil
	}
	shared := o.Shared
	for _, rel := range dirs {
		is, err := usesDatabase(filepath.Join(o.Dir.Root, rel))
		if err != nil {
			return failed(o.Dir.Root, err)
		}
		shared = shared || is
	}
	records, err := o.Dir.RecordsElsewhere()
	if err != nil {
		return failed(o.Dir.Root, err)
	}
	refuse := func(what, page string) error {
		return turnstone.Errorf(op, turnstone.KindInvalid, o.Dir.Root, "%s", what).
			WithHint("dump each database with pg_dump first, then add --dumped: " + page)
	}
	switch {
	case shared && records:
		return refuse("its sessions and its controller's records are in PostgreSQL databases, which are not copied",
			"docs/shared.md, Backup and restore")
	case shared:
		return refuse("its sessions are in a PostgreSQL database, which is not copied",
			"docs/shared.md, Backup and restore")
	case records:
		return refuse("its controller's records are in a PostgreSQL database, which is not copied",
			"docs/operations.md, Records in PostgreSQL")
	}
	return nil
}

// usesDatabase reports whether a database is the owner of a bucket that a state directory uses: see
// package location, which notes the owner of each.
func usesDatabase(dir string) (bool, error) {
	notes, err := filepath.Glob(filepath.Join(escape(dir), "store-s3", "*", "claimed"))
	if err != nil {
		return false, err
	}
	for _, note := range notes {
		owner, err := os.ReadFile(note)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		if strings.HasPrefix(string(owner), session.DatabasePrefix) {
			return true, nil
		}
	}
	return false, nil
}

// escape returns a path as a pattern that matches it alone.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
