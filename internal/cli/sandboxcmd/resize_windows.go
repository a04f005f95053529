package sandboxcmd

import "os"

// notifyResize does nothing: Windows has no such signal.
func notifyResize(chan<- os.Signal) {}
