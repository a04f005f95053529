package substratetest

import (
	"os"

	"turnstone.dev/turnstone"
)

func digestFile(path string) (turnstone.Digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	return turnstone.DigestReader(f)
}
