package main

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/statedir"
)

// A hostList is hosts.toml of a mounted secret. What this client has seen of roots stays when it is taken:
// a root that has been replaced is not believed again because the operator starts anew.
type hostList struct {
	from, home string
	taken      [sha256.Size]byte // of the text that was taken last
}

// hostsAgain is how long a change of the list waits: a kubelet takes a minute itself.
const hostsAgain = 5 * time.Second

// take takes the list if its text is another than before, and reports whether it was.
func (l *hostList) take(ctx context.Context) (bool, error) {
	text, err := readSecret(filepath.Join(l.from, hosts.File))
	if err != nil {
		return false, err
	}
	sum := sha256.Sum256(text)
	if sum == l.taken {
		return false, nil
	}
	list, err := hosts.Parse(string(text))
	if err != nil {
		return false, err
	}
	dir, err := statedir.Open(l.home)
	if err != nil {
		return false, err
	}
	err = hosts.Store{Dir: dir}.Change(ctx, func(old *hosts.List) error {
		old.Take(list)
		return nil
	})
	if err == nil {
		l.taken = sum
	}
	return err == nil, err
}

// follow takes the list again and again until ctx ends.
func (l *hostList) follow(ctx context.Context, log *slog.Logger) {
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(hostsAgain):
		}
		changed, err := l.take(ctx)
		text := ""
		if err != nil {
			text = err.Error()
		}
		switch {
		case changed:
			log.Info("the list of hosts has changed, and counts now")
		case text != "" && text != last && ctx.Err() == nil:
			log.Warn("the list of hosts was not taken", "error", text)
		}
		last = text
	}
}
