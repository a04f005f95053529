package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/terminal"
)

// maxPassphrase bounds a passphrase in bytes.
const maxPassphrase = 4 << 10

// Passphrase returns the passphrase of a key: the first line of the file that TURN_PASSPHRASE_FILE
// names, or what the user types at the terminal.
func (a *App) Passphrase(key string) ([]byte, error) {
	if path := a.Env.PassphraseFile; path != "" {
		return readPassphrase(path)
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, turnstone.Errorf("key.passphrase", turnstone.KindInvalid, key,
			"needs a passphrase, and there is no terminal").
			WithHint("name a file with the passphrase in TURN_PASSPHRASE_FILE; " +
				"for a key that signs, the SSH agent works too")
	}
	defer func() { _ = tty.Close() }()
	terminal.Printf(tty, "Passphrase of %s: ", terminal.Name(key))
	pass, err := term.ReadPassword(int(tty.Fd()))
	terminal.Println(tty, "")
	if err != nil {
		return nil, turnstone.NewError("key.passphrase", turnstone.KindCanceled, key, err)
	}
	return pass, nil
}

// NewPassphrase returns the passphrase of a new key, which the user types twice; nil if none is
// wanted.
func (a *App) NewPassphrase(wanted bool) ([]byte, error) {
	if !wanted {
		return nil, nil
	}
	one, err := a.Passphrase("the new key")
	if err != nil || a.Env.PassphraseFile != "" {
		return one, err
	}
	two, err := a.Passphrase("the new key, again")
	switch {
	case err != nil:
		return nil, err
	case string(one) != string(two):
		err = errors.New("the passphrases differ")
	case len(one) == 0:
		err = errors.New("the passphrase is empty")
	}
	if err != nil {
		return nil, turnstone.NewError("key.passphrase", turnstone.KindInvalid, "", err)
	}
	return one, nil
}

func readPassphrase(path string) ([]byte, error) {
	fail := func(err error) ([]byte, error) {
		return nil, turnstone.NewError("key.passphrase", turnstone.KindInvalid, path, err).
			WithHint("write the passphrase into the first line of the file")
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxPassphrase+1))
	if err != nil {
		return fail(err)
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) == 0 || len(line) > maxPassphrase {
		return fail(fmt.Errorf("the first line has %d bytes", len(line)))
	}
	return line, nil
}
