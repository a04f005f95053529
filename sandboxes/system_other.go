//go:build !linux || turnstone_client

package sandboxes

import (
	"net"
	"os"
	"syscall"

	"turnstone.dev/turnstone/internal/platform"
)

// No sandbox runs on this system, so no process is a holder or has a connection to one.

const rightsSpace = 0

func rightsOf(*os.File) []byte { return nil }

func descriptors([]byte) []int { return nil }

func connPair() (net.Conn, *os.File, error) { return nil, nil, onlyLinux() }

func ownSession() *syscall.SysProcAttr { return nil }

func lockFolder(*os.File) (bool, error) { return false, onlyLinux() }

func onlyLinux() error { return platform.NoSandboxes("sandbox") }
