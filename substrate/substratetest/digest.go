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
	defer f.Close()
	return turnstone.DigestReader(f)
}
