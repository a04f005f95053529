//go:build !linux

package ownsocket

import (
	"net"

	"turnstone.dev/turnstone/internal/platform"
)

func checkPeer(*net.UnixConn) error { return platform.NoSandboxes("sandbox") }
