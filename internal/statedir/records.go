package statedir

import (
	"errors"
	"io/fs"
	"os"

	"turnstone.dev/turnstone"
)

// recordsNote is an empty file. It says that the records of the controller with this state directory are
// in a database elsewhere, which a copy of the directory does not have.
const recordsNote = "records-elsewhere"

// RecordsNote is the path of the note that NoteRecords keeps, relative to the state directory.
func RecordsNote() string { return recordsNote }

// NoteRecords notes whether the controller's records are in a database elsewhere. A controller calls it
// before it uses them.
func (d *Dir) NoteRecords(elsewhere bool) error {
	path := d.Path(recordsNote)
	var err error
	if elsewhere {
		err = os.WriteFile(path, nil, 0o600)
	} else {
		err = os.Remove(path)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) && !elsewhere {
		return nil
	}
	return turnstone.Classify("records.note", turnstone.KindUnavailable, path, err,
		"free some space on the disk of the state directory")
}

// RecordsElsewhere reports whether NoteRecords has noted a database elsewhere.
func (d *Dir) RecordsElsewhere() (bool, error) {
	_, err := os.Stat(d.Path(recordsNote))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
