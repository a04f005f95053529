package uicmd

import (
	"errors"
	"fmt"
	"html"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// browse opens an address in the person's browser. Other users of this machine can read the arguments
// of programs, and the address has the token: the browser gets the name of a private file instead,
// which leads to the address. The caller calls remove when the page is no longer served.
func browse(address string) (remove func(), err error) {
	dir, err := os.MkdirTemp("", "turn-ui-") // of mode 0700
	if err != nil {
		return func() {}, err
	}
	remove = func() { _ = os.RemoveAll(dir) } // the token in it is worth nothing any longer
	file := filepath.Join(dir, "open.html")
	page := fmt.Sprintf("<!doctype html><meta name=referrer content=no-referrer>"+
		"<meta http-equiv=refresh content=\"0;url=%s\">", html.EscapeString(address))
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		return remove, err
	}
	to := (&url.URL{Scheme: "file", Path: filepath.ToSlash(file)}).String()
	program, args := "xdg-open", []string{to}
	switch runtime.GOOS {
	case "darwin":
		program = "open"
	case "windows":
		program, args = "rundll32", []string{"url.dll,FileProtocolHandler", file}
	}
	cmd := exec.Command(program, args...)
	if err := cmd.Start(); err != nil {
		return remove, errors.Join(err, errors.New("open the address yourself"))
	}
	go func() { _ = cmd.Wait() }() // ends with the program, or with this process
	return remove, nil
}
