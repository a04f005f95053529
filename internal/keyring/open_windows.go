package keyring

import "os"

// openNoFollow opens a file for reading. Windows has no flag for links here; the folder is private.
func openNoFollow(path string) (*os.File, error) { return os.Open(path) }
