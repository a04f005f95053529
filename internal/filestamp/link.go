package filestamp

import "os"

// Linked is what Link changed: the metadata of a file before and after it got another name.
type Linked struct{ before, after Stamp }

// Link makes to another name of the file from. That changes the inode, so that stamps of the file are no
// longer fresh; those that were are replaced by what Stamp returns.
func Link(from, to string) (Linked, error) {
	before, err := Quick(from)
	if err != nil {
		return Linked{}, err
	}
	if err := os.Link(from, to); err != nil {
		return Linked{}, err
	}
	after, err := Quick(to)
	return Linked{before, after}, err
}

// Stamp returns the stamp of a file which s was fresh for just before the link, and s if it was not. A
// file that was written between the two looks has another modification time, and s stays, too.
func (l Linked) Stamp(s Stamp) Stamp {
	if !s.same(l.before) || l.after.Size != s.Size || l.after.Inode != s.Inode || l.after.MtimeNs != s.MtimeNs {
		return s
	}
	l.after.Digest = s.Digest
	return l.after
}
