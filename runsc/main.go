// Command runsc is gVisor's program at a pinned version, with the additions that
// overlay/ describes. See README.md.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() { maincli.Main() }
