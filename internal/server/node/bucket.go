package node

import (
	"log/slog"

	"turnstone.dev/turnstone/internal/server/node/bucket"
)

// A Bucket watches whether the bucket of a node's sessions can be used; nil: they are in none.
type Bucket = bucket.Watch

// WatchBucket returns a watch of the bucket at the URL of a store: see bucket.Open.
func WatchBucket(store string, log *slog.Logger) (*Bucket, error) { return bucket.Open(store, log) }
