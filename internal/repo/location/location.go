// Package location opens the location of a state directory's packs: a folder in the state directory,
// or a bucket, which belongs to one state directory at a time.
package location

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/blob/local"
	"turnstone.dev/turnstone/internal/store/blob/s3"
	"turnstone.dev/turnstone/internal/store/session"
)

// Open returns the location of the packs of the state directory dir, and the folder with the
// store's local data. where is s3://BUCKET/PREFIX, or empty for a folder in dir. A bucket that
// belongs to another state directory is an error of kind Unavailable, because the gc of each knows
// only its own turns. fault is called before each write to a folder, for tests; it may be nil.
func Open(ctx context.Context, dir *statedir.Dir, where string,
	fault func(op string) error) (at blob.Store, folder string, err error) {
	if where == "" {
		s, err := local.Open(dir.Path("store", "blobs"), local.Options{Fault: fault})
		if err != nil {
			return nil, "", err
		}
		return s, dir.Path("store"), nil
	}
	id, err := ID(dir)
	if err != nil {
		return nil, "", err
	}
	return bucket(ctx, dir, where, id)
}

// bucket opens a bucket that belongs to the owner called id.
func bucket(ctx context.Context, dir *statedir.Dir, where, id string) (at blob.Store, folder string,
	err error) {
	o, err := s3.ParseURL(where)
	if err != nil {
		return nil, "", err
	}
	s, err := s3.Open(o)
	if err != nil {
		return nil, "", err
	}
	// The index of one place does not apply to another.
	folder, err = dir.MkdirAll("store-s3",
		turnstone.DigestBytes([]byte(o.Endpoint+"/"+o.Bucket+"/"+o.Prefix)).Short())
	if err != nil {
		return nil, "", err
	}
	return s, folder, claim(ctx, id, s, where, filepath.Join(folder, "claimed"))
}

// claims begins the names of the blobs that name the owner of a place.
const claims = "homes/"

// claim makes id, of a state directory or of a database, the owner of a place that others can reach: the gc of one does not know the turns
// of others, and would delete their data. The blob homes/<id> names the owner. noted is
// a file that records an earlier claim. A place of another owner is an error of kind Unavailable.
// Of two owners that claim concurrently both may be rejected, and at most one is accepted, because
// each checks again after it has written its own claim.
func claim(ctx context.Context, id string, at blob.Store, where, noted string) error {
	if b, err := os.ReadFile(noted); err == nil && string(bytes.TrimSpace(b)) == id {
		return nil
	}
	wrap := func(err error) error {
		hint := turnstone.HintOf(err)
		if hint == "" {
			hint = "the store of TURN_STORE is not available: " +
				"check the connection to the bucket, " +
				"or unset TURN_STORE to store turns in the state directory"
		}
		return turnstone.NewError("executor.claim", turnstone.KindOf(err), where, err).
			WithHint(hint)
	}
	other, mine, err := claimed(ctx, at, id)
	if err != nil {
		return wrap(err)
	}
	if other == "" && !mine {
		if err := at.Put(ctx, claims+id, strings.NewReader(id), int64(len(id))); err != nil {
			return wrap(err)
		}
		if other, mine, err = claimed(ctx, at, id); err != nil {
			return wrap(err)
		}
		if late, ok := at.(blob.Late); ok && other == "" && !mine && late.Settle(ctx) {
			if other, mine, err = claimed(ctx, at, id); err != nil {
				return wrap(err)
			}
		}
		if other == "" && !mine { // then it may lack another's claim, too
			return wrap(turnstone.Errorf("executor.claim", turnstone.KindUnavailable, "the bucket",
				"its lists do not have what was stored before").
				WithHint("check the bucket's server, and try again"))
		}
		if other != "" {
			if err := at.Remove(ctx, claims+id); err != nil {
				return wrap(err)
			}
		}
	}
	if strings.HasPrefix(other, session.DatabasePrefix) {
		return turnstone.Errorf("executor.claim", turnstone.KindUnavailable, where,
			"belongs to the database of several machines").
			WithHint("set TURN_DATABASE to that database, or give this TURN_HOME its own prefix")
	}
	if other != "" {
		return turnstone.Errorf("executor.claim", turnstone.KindUnavailable, where,
			"is the store of another state directory or database, whose gc would delete this one's data").
			WithHint(fmt.Sprintf("give each TURN_HOME its own prefix, or, "+
				"if the other state directory no longer exists, delete %s%s there", claims, other))
	}
	return filestamp.WriteFile(noted, []byte(id+"\n"), 0o600)
}

// claimed returns an owner of the place other than id, and whether id is an owner.
func claimed(ctx context.Context, at blob.Store, id string) (other string, mine bool, err error) {
	for info, err := range at.List(ctx, claims) {
		if err != nil {
			return "", false, err
		}
		if name := strings.TrimPrefix(info.Name, claims); name == id {
			mine = true
		} else {
			other = name
		}
	}
	return other, mine, nil
}

// ID returns the name of dir in places that others can reach. The first call creates it.
func ID(dir *statedir.Dir) (string, error) {
	path := dir.Path("store-id")
	failed := func(err error) error {
		return turnstone.NewError("executor.claim", turnstone.KindUnavailable, path, err).
			WithHint("check that the state directory belongs to you")
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		tmp := fmt.Sprintf("%s.%s", path, rand.Text())
		if err := filestamp.WriteFile(tmp, []byte(strings.ToLower(rand.Text())+"\n"),
			0o600); err != nil {
			return "", failed(err)
		}
		err = os.Link(tmp, path) // another process may be first
		_ = os.Remove(tmp)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", failed(err)
		}
		b, err = os.ReadFile(path)
	}
	if err != nil {
		return "", failed(err)
	}
	id := string(bytes.TrimSpace(b))
	if err := blob.CheckName("executor.claim", id); err != nil || strings.Contains(id, "/") {
		return "", failed(errors.New("is damaged"))
	}
	return id, nil
}
