package s3

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/minio/minio-go/v7"

	"turnstone.dev/turnstone"
)

// maxPuts is how often a blob is sent that the server accepts and does not have.
const maxPuts = 3

// errNotStored is in the chain of the error of a blob that the server accepted and does not have.
var errNotStored = errors.New("the server accepted the blob, and does not have it")

// confirm asks the server for a blob that it has accepted.
func (s *Store) confirm(ctx context.Context, op turnstone.Op, name string, size int64) error {
	var info minio.ObjectInfo
	err := s.present(ctx, func() (err error) {
		info, err = s.client.StatObject(ctx, s.bucket, s.prefix+name, minio.StatObjectOptions{})
		return err
	})
	switch {
	case missing(err):
		err = errNotStored
	case err == nil && info.Size != size:
		err = fmt.Errorf("%w: it has %d bytes of %d", errNotStored, info.Size, size)
	}
	err = s.fail(ctx, op, name, err)
	if e := (*turnstone.Error)(nil); errors.As(err, &e) && errors.Is(err, errNotStored) {
		e.Hint = "check the bucket's server: its storage is not reliable"
	}
	return err
}

// present calls f again for a while if it finds no blob: a server may answer that it does not have
// the newest ones.
func (s *Store) present(ctx context.Context, f func() error) error {
	pause := 50 * time.Millisecond
	for try := 1; ; try++ {
		err := f()
		if !missing(err) || try == 4 {
			return err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return err
		}
		pause *= 2
	}
}

func missing(err error) bool { return minio.ToErrorResponse(err).Code == minio.NoSuchKey }

const (
	settleTime = time.Second
	// settleEvery bounds the share of Settle in the time of a caller that misses many blobs.
	settleEvery = 5 * time.Second
)

// Settle implements blob.Late. Callers share a wait.
func (s *Store) Settle(ctx context.Context) bool {
	s.settling.Lock()
	now := time.Now()
	if now.Sub(s.settles) > settleEvery {
		s.settles = now
	}
	left := settleTime - now.Sub(s.settles)
	s.settling.Unlock()
	if left <= 0 {
		return false
	}
	select {
	case <-time.After(left):
		return true
	case <-ctx.Done():
		return false
	}
}
