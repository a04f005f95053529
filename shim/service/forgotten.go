package service

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/containerd/log"
)

// lookEvery is the time between two looks at the folders of a shim.
const lookEvery = 10 * time.Second

// endForgotten ends the shim if containerd has forgotten it, since nobody else will. bundle is the folder in
// which it was started.
func (s *Service) endForgotten(bundle string) {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-s.stopped:
			return
		case <-t.C:
		}
		if s.forgotten(bundle) {
			log.G(s.ctx).Error("containerd has removed the folders of the sandbox and its containers: it ends")
			s.end()
			s.shutdown.Shutdown()
			return
		}
	}
}

// forgotten reports whether the folders of the shim and of all its containers are gone: containerd 2.0
// removes those of sandboxes when it starts, and every one removes those of a shim that it cannot reach. A
// container whose folder is left can still be stopped.
func (s *Service) forgotten(bundle string) bool {
	s.mu.Lock()
	dirs := []string{bundle}
	for c := range maps.Values(s.containers) {
		dirs = append(dirs, c.bundle)
	}
	s.mu.Unlock()
	return !slices.ContainsFunc(dirs, func(dir string) bool {
		_, err := os.Stat(dir)
		return !errors.Is(err, fs.ErrNotExist)
	})
}
