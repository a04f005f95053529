package key

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
)

// maxFile bounds a file with a key, in bytes.
const maxFile = 64 << 10

// A Passphrase returns the passphrase of the key called what. It is asked once for each attempt.
type Passphrase func(what string) ([]byte, error)

// Load reads the private key at path, in OpenSSH's format. The error is of kind KindNotFound if
// there is no file, and Invalid if another user can read it, if it is not an Ed25519 key, or if the
// passphrase is wrong. ask may be nil.
func Load(path string, ask Passphrase) (*Signer, error) {
	b, err := ReadPrivate(path, "the key")
	if err != nil {
		return nil, err
	}
	return parsePrivate(path, b, ask)
}

// ReadPrivate returns the content of a file with a secret, such as "the key", that only its owner can
// read, at most 64 KiB. Errors are as those of Load.
func ReadPrivate(path, what string) ([]byte, error) {
	return readOwn(path, maxFile, func(info fs.FileInfo) error { return checkOwn(path, what, info) })
}

// ReadRecord returns the content of a file that says what its owner does with a key, at most max
// bytes. Other users can neither write the file nor own it. Errors are as those of Load.
func ReadRecord(path string, max int64) ([]byte, error) {
	return readOwn(path, max, func(info fs.FileInfo) error { return checkWriters(path, info) })
}

// readOwn reads a regular file that check accepts. It follows no link and waits for no writer.
func readOwn(path string, max int64, check func(fs.FileInfo) error) ([]byte, error) {
	f, err := openNoFollow(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, turnstone.NewError("key.load", turnstone.KindNotFound, path, err)
	}
	if errors.Is(err, errSymlink) {
		return nil, turnstone.Errorf("key.load", turnstone.KindInvalid, path, "is a symbolic link").
			WithHint("name the file that it leads to")
	}
	if err != nil {
		return nil, turnstone.NewError("key.load", turnstone.KindUnavailable, path, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, turnstone.NewError("key.load", turnstone.KindUnavailable, path, err)
	}
	switch {
	case !info.Mode().IsRegular():
		err = errors.New("is not a regular file")
	case info.Size() > max:
		err = fmt.Errorf("has %d bytes", info.Size())
	}
	if err != nil {
		return nil, turnstone.NewError("key.load", turnstone.KindInvalid, path, err)
	}
	if err := check(info); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, max))
	if err != nil {
		return nil, turnstone.NewError("key.load", turnstone.KindUnavailable, path, err)
	}
	return b, nil
}

// parsePrivate parses the content of the key file called path.
func parsePrivate(path string, b []byte, ask Passphrase) (*Signer, error) {
	s, err := ssh.ParsePrivateKey(b)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		if ask == nil {
			return nil, turnstone.Errorf("key.load", turnstone.KindInvalid, path,
				"needs a passphrase").
				WithHint("set TURN_PASSPHRASE_FILE, or add the key to the SSH agent")
		}
		if n := rounds(b); n > maxRounds {
			return nil, turnstone.Errorf("key.load", turnstone.KindInvalid, path,
				"asks for %d rounds of its passphrase; the limit is %d", n, maxRounds).
				WithHint("ssh-keygen -p -a 16 encrypts it anew")
		}
		var pass []byte
		if pass, err = ask(path); err != nil {
			return nil, err
		}
		s, err = ssh.ParsePrivateKeyWithPassphrase(b, pass)
		clear(pass)
	}
	if err != nil {
		e := turnstone.NewError("key.load", turnstone.KindInvalid, path, err)
		e.Hint = "name a private key in OpenSSH's format, of type ed25519"
		if locked != nil {
			e.Hint = "check the passphrase"
		}
		return nil, e
	}
	signer, err := NewSigner(s)
	if err == nil && signer.hardware() {
		err = errors.New("is the handle of a security token; add it to the SSH agent")
	}
	if err == nil {
		err = matches(s)
	}
	if err != nil {
		return nil, turnstone.NewError("key.load", turnstone.KindInvalid, path, err).
			WithHint(turnstone.HintOf(err))
	}
	return signer, nil
}

// matches reports a file whose private and public key are not a pair, which the parser does not
// compare: its first signature would fail only at the end of a turn.
func matches(s ssh.Signer) error {
	probe := []byte("turnstone: does this file hold a pair of keys?")
	sig, err := s.Sign(rand.Reader, probe)
	if err == nil {
		err = s.PublicKey().Verify(probe, sig)
	}
	if err != nil {
		return turnstone.Errorf("key.load", turnstone.KindInvalid, "the key",
			"is damaged: its private key does not belong to its public key").
			WithHint("restore the file, or make a new key")
	}
	return nil
}

// maxRounds bounds the work for a passphrase: ssh-keygen's default is 16 to 24 rounds, and 1,000
// take some seconds.
const maxRounds = 2000

// rounds returns the number of rounds that a passphrase takes, which the file of a key says.
func rounds(file []byte) uint32 {
	block, _ := pem.Decode(file)
	if block == nil {
		return 0
	}
	raw, _ := bytes.CutPrefix(block.Bytes, []byte("openssh-key-v1\x00"))
	var head struct {
		Cipher, Function, Options string
		Rest                      []byte `ssh:"rest"`
	}
	var options struct {
		Salt   string
		Rounds uint32
	}
	if ssh.Unmarshal(raw, &head) != nil || ssh.Unmarshal([]byte(head.Options), &options) != nil {
		return 0
	}
	return options.Rounds
}

// generate makes an Ed25519 key, and returns it with its file's content. An empty passphrase
// leaves the file without encryption.
func generate(comment string, passphrase []byte) (*Signer, []byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	b, err := encodePrivate(private, comment, passphrase)
	if err != nil {
		return nil, nil, err
	}
	s, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, nil, err
	}
	signer, err := NewSigner(s)
	return signer, b, err
}

func encodePrivate(private ed25519.PrivateKey, comment string, passphrase []byte) ([]byte, error) {
	var block *pem.Block
	var err error
	if len(passphrase) == 0 {
		block, err = ssh.MarshalPrivateKey(private, comment)
	} else {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(private, comment, passphrase)
	}
	if err != nil {
		return nil, turnstone.NewError("key.make", turnstone.KindInternal, "", err)
	}
	return pem.EncodeToMemory(block), nil
}

// writeKey writes the files of a key: the private key, unless b is nil, and the public key.
func writeKey(path string, b []byte, p Public, comment string) error {
	public := []byte(p.String() + " " + comment + "\n")
	var err error
	if b != nil {
		err = filestamp.WriteFile(path, b, 0o600)
	}
	if err == nil {
		err = filestamp.WriteFile(path+".pub", public, 0o600)
	}
	if err != nil {
		return turnstone.Classify("key.make", turnstone.KindUnavailable, path, err,
			"free some disk space, such as with turn gc")
	}
	return nil
}
