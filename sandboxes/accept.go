package sandboxes

import (
	"errors"
	"log/slog"
	"net"
	"time"
)

// acceptPeers calls serve with each connection to l of this process's user, until l is closed. what
// names a connection in the log.
func acceptPeers(l *net.UnixListener, log *slog.Logger, what string, serve func(*net.UnixConn)) {
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // probably out of descriptors: others will be closed
			log.Warn(what+" could not be accepted", "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err := checkPeer(conn); err != nil {
			log.Warn(what+" was rejected", "err", err)
			_ = conn.Close()
			continue
		}
		serve(conn)
	}
}
