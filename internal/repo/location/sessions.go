package location

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/session"
)

// OpenAll returns the sessions of dir, the location of their packs, and the folder with the store's
// local data: see Open. With the URL of a PostgreSQL database, the sessions are there, and the bucket
// where belongs to the database, and the database to the bucket: others are errors of kind Unavailable.
func OpenAll(ctx context.Context, dir *statedir.Dir, where, url string,
	fault func(op string) error) (db *session.DB, at blob.Store, folder string, err error) {
	if url != "" {
		return openShared(ctx, dir, where, url)
	}
	at, folder, err = Open(ctx, dir, where, fault)
	if err != nil {
		return nil, nil, "", err
	}
	if err := notLost(ctx, dir, at); err != nil {
		return nil, nil, "", err
	}
	db, err = Sessions(ctx, dir, "")
	return db, at, folder, err
}

func openShared(ctx context.Context, dir *statedir.Dir, where, url string) (db *session.DB,
	at blob.Store, folder string, err error) {
	if where == "" {
		return nil, nil, "", turnstone.Errorf("executor.shared", turnstone.KindInvalid, "TURN_DATABASE",
			"needs a bucket for the objects of its turns, which all its machines reach").
			WithHint("set TURN_STORE=s3://BUCKET/PREFIX")
	}
	if db, err = Sessions(ctx, dir, url); err != nil {
		return nil, nil, "", err
	}
	id, known, err := db.Identity(ctx)
	if err == nil && known != "" && known != where { // or this call would claim a bucket
		err = session.WrongStore(db, known, where)
	}
	if err == nil {
		at, folder, err = bucket(ctx, dir, where, id)
	}
	if err == nil {
		err = db.Claim(ctx, where)
	}
	if err != nil {
		return nil, nil, "", errors.Join(err, db.Close())
	}
	return db, at, folder, nil
}

// mainSchema is the schema of the sessions of a host's user.
const mainSchema = "turn"

// OfTenant returns the URL of the schema with a tenant's sessions; empty if url is.
func OfTenant(url, tenant string) string {
	if url == "" {
		return ""
	}
	return pg.In(url, "tenant_", tenant)
}

// Sessions opens the sessions of dir, in the database at url, or in dir if url is empty.
func Sessions(ctx context.Context, dir *statedir.Dir, url string) (*session.DB, error) {
	if url == "" {
		return session.Open(ctx, dir.Path("context.db"))
	}
	url, schema := pg.Schema(url, mainSchema)
	life, err := pg.Lease(url)
	if err != nil {
		return nil, err
	}
	return session.OpenShared(ctx, url, schema, life)
}

// HasSessions reports whether there may be sessions of dir: without any, Sessions would create their
// database.
func HasSessions(dir *statedir.Dir, url string) bool {
	if url != "" {
		return true
	}
	_, err := os.Stat(dir.Path("context.db"))
	return err == nil || !errors.Is(err, fs.ErrNotExist)
}

// notLost reports that the sessions are lost although the data of their turns exists: with an empty
// database, gc would delete all of it.
func notLost(ctx context.Context, dir *statedir.Dir, blobs blob.Store) error {
	path := dir.Path("context.db")
	if fi, err := os.Stat(path); err == nil && fi.Size() > 0 || err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for pack, err := range blobs.List(ctx, "packs/") {
		if err != nil {
			return err
		}
		return turnstone.Errorf("executor.context", turnstone.KindIntegrity, path,
			"is lost, with the sessions; the data of their turns is still in the store (%s)", pack.Name).
			WithHint("restore a copy of the file, or move the store's packs away to start " +
				"with an empty store; receipts are in turns/ beside it")
	}
	return nil
}
