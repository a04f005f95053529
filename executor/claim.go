package executor

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/store/blob"
)

// claims is what the blobs begin with that say whose a place is.
const claims = "homes/"

// claim makes a place that others can reach this state directory's own: its gc knows
// of no other's turns, and would delete what they left. The blob homes/<id> says whose
// it is. noted is a file that says that this was looked at before. That a place is
// another's is an error of kind Unavailable. Two that come at once may both be refused,
// and are never both let in: each looks after it has said that it is there.
func (x *Repo) claim(ctx context.Context, at blob.Store, where, noted string) error {
	id, err := x.storeID()
	if err != nil {
		return err
	}
	if b, err := os.ReadFile(noted); err == nil && string(bytes.TrimSpace(b)) == id {
		return nil
	}
	wrap := func(err error) error {
		hint := turnstone.HintOf(err)
		if hint == "" {
			hint = "TURN_STORE says that the store is there: see that the bucket can be reached, or unset it to keep turns in the state directory"
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
		if other, _, err = claimed(ctx, at, id); err != nil {
			return wrap(err)
		}
		if other != "" {
			if err := at.Remove(ctx, claims+id); err != nil {
				return wrap(err)
			}
		}
	}
	if other != "" {
		return turnstone.Errorf("executor.claim", turnstone.KindUnavailable, where,
			"is the store of another state directory, whose gc would delete what this one leaves").
			WithHint(fmt.Sprintf("give each TURN_HOME a prefix of its own, or, when the other one is gone, delete %s%s there", claims, other))
	}
	return filestamp.WriteFile(noted, []byte(id+"\n"), 0o600)
}

// claimed returns who has claimed a place, other than id, and whether id has.
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

// storeID returns the name that this state directory has where others are, which it
// gets when it is asked first.
func (x *Repo) storeID() (string, error) {
	path := x.home.Path("store-id")
	failed := func(err error) error {
		return turnstone.NewError("executor.claim", turnstone.KindUnavailable, path, err).
			WithHint("the state directory has to be yours")
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		tmp := fmt.Sprintf("%s.%s", path, rand.Text())
		if err := filestamp.WriteFile(tmp, []byte(strings.ToLower(rand.Text())+"\n"), 0o600); err != nil {
			return "", failed(err)
		}
		err = os.Link(tmp, path) // another process may be the first
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
