package manifest

import (
	"io/fs"
	"os"
)

func openFile(name string) (*os.File, error) { return os.Open(name) }

// distrusted returns "": the access rights of folders say who may write files into them.
func distrusted(fs.FileInfo) string { return "" }

func together(fs.FileInfo, fs.FileInfo) bool { return true }
