package server

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/config"
)

// TestHere: a controller that follows a node of an earlier process asks before the node is open.
func TestHere(t *testing.T) {
	s := &Server{c: &config.Config{Roles: []string{config.Controller, config.Node}}}
	if !s.here(inMemory) || s.here("unix:/elsewhere") {
		t.Error("the node of this process is elsewhere")
	}
	s.c.Roles = []string{config.Controller}
	if s.here(inMemory) {
		t.Error("there is no node in this process")
	}
	// no name server is asked for the host "memory"
	if _, err := s.dialNode(t.Context(), inMemory); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "earlier server") {
		t.Error(err)
	}
}
