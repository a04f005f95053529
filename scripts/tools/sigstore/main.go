// Command sigstore verifies a bundle that turn verify --format sigstore printed, with Sigstore's own
// verifier, which is that of cosign too.
//
// usage: sigstore BUNDLE KEY DIGEST    KEY is TYPE BASE64, DIGEST the SHA-256 of a subject in hex
package main

import (
	"crypto"
	"encoding/hex"
	"fmt"
	"os"
	"time"

	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"
	"golang.org/x/crypto/ssh"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(path, line, digest string) error {
	b, err := bundle.LoadJSONFromPath(path)
	if err != nil {
		return err
	}
	k, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return err
	}
	v, err := signature.LoadVerifier(k.(ssh.CryptoPublicKey).CryptoPublicKey(), crypto.SHA512)
	if err != nil {
		return err
	}
	key := root.NewExpiringKey(v, time.Time{}, time.Time{})
	keys := root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) {
		return key, nil
	})
	sev, err := verify.NewVerifier(keys, verify.WithNoObserverTimestamps())
	if err != nil {
		return err
	}
	sum, err := hex.DecodeString(digest)
	if err != nil {
		return err
	}
	res, err := sev.Verify(b, verify.NewPolicy(verify.WithArtifactDigest("sha256", sum),
		verify.WithKey()))
	if err != nil {
		return err
	}
	fmt.Println(res.Statement.GetPredicateType())
	return nil
}
