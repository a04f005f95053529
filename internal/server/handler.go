package server

import (
	"net/http"

	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/peers"
)

// peerHandler serves other roles: each path those roles that need it.
func (s *Server) peerHandler() http.Handler {
	mux := http.NewServeMux()
	if c := s.controller; c != nil {
		const registers = connectv1.ControllerServiceRegisterNodeProcedure
		near, far := c.Peers(), c.PeersFromNetwork()
		mux.Handle(registers, peers.Only(http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			if r.TLS != nil {
				far.ServeHTTP(w, r)
			} else {
				near.ServeHTTP(w, r)
			}
		}), config.Node))
		mux.Handle("GET "+peers.LeaderPath, peers.Only(peers.Leads(c.Fence), config.Node,
			config.Gateway))
		mux.Handle("/"+connectv1.ControllerServiceName+"/", peers.Only(c.Peers(), config.Gateway))
		mux.Handle("/", peers.Only(c.Callers(), config.Gateway))
	}
	if s.node != nil {
		s.node.Handle(mux)
	}
	return mux
}
