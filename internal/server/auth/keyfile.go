package auth

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"turnstone.dev/turnstone"
)

// maxKeyFile bounds the files of an issuer, in bytes.
const maxKeyFile = 64 << 10

// readOwn returns the content of a file that only its owner can read and write. An error in it is
// of kind NotFound if there is no file.
func readOwn(path string) ([]byte, error) {
	const op = "token.key"
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, turnstone.NewError(op, turnstone.KindNotFound, path, err)
	case errors.Is(err, syscall.ELOOP):
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, path, "is a symbolic link").
			WithHint("replace the link by a copy of its target")
	case err != nil:
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, path, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, path, err)
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		err = errors.New("is not a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, path,
			"has mode %04o: other users can read or write it", info.Mode().Perm()).
			WithHint("chmod 600 " + path + ", and rotate the key if others had access")
	case st == nil || int(st.Uid) != os.Geteuid() && st.Uid != 0:
		err = errors.New("belongs to another user")
	case info.Size() > maxKeyFile:
		err = fmt.Errorf("has %d bytes; the limit is %d", info.Size(), maxKeyFile)
	}
	if err != nil {
		return nil, turnstone.NewError(op, turnstone.KindInvalid, path, err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, path, err)
	}
	return b, nil
}

// writeOwn durably writes a file that only its owner can read: to a new file, and from there to
// path with place, which is os.Rename or os.Link.
func writeOwn(path string, b []byte, place func(from, to string) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already after a rename
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = place(f.Name(), path)
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return dir.Sync()
}

// lockOwn waits until no other process changes the files beside path. The lock ends with the
// process.
func lockOwn(path string) (release func(), err error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

const pemType = "PRIVATE KEY"

// encodePrivate returns a private key as PKCS #8 in PEM (RFC 5958, 8410), as openssl genpkey does.
func encodePrivate(k ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}), nil
}

// decodePrivate is the reverse of encodePrivate. Its errors hold nothing of the file.
func decodePrivate(b []byte) (ed25519.PrivateKey, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != pemType || len(rest) > 0 {
		return nil, errors.New("is not one private key as PKCS #8 in PEM")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("is not a private key as PKCS #8")
	}
	private, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("is not an Ed25519 key")
	}
	return private, nil
}
