// Package cdptest runs a stock client of the Chrome DevTools Protocol in tests.
package cdptest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/statedir"
)

// The stock client, and its WebSocket dependency.
const (
	stockClient = "chrome-remote-interface@0.34.0"
	webSockets  = "ws@7.5.10"
)

// Time limits for npm and for the client.
const (
	installTime = 3 * time.Minute
	runTime     = 3 * time.Minute
)

// install returns a folder outside of the repository that has the unmodified stock client from npm
// in node_modules.
func install(ctx context.Context) (string, error) {
	dir, err := folder()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	lock, err := statedir.Acquire(ctx, dir+".lock", nil)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tmp := dir + ".tmp"
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o700)); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "npm", "install", "--prefix", tmp, "--no-audit", "--no-fund",
		"--ignore-scripts", "--save-exact", "--fetch-retries", "1", stockClient, webSockets)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install: %w\n%s", err, out)
	}
	return dir, os.Rename(tmp, dir)
}

func folder() (string, error) {
	cache, err := os.UserCacheDir()
	name := strings.NewReplacer("@", "-").Replace(stockClient + "-" + webSockets)
	return filepath.Join(cache, "turnstone-test", "npm", name), err
}

// Installed reports whether the client is installed: quick tests can skip its installation.
func Installed() bool {
	dir, err := folder()
	if err == nil {
		_, err = os.Stat(dir)
	}
	return err == nil
}

// Install installs the client if it is missing.
func Install(ctx context.Context) error {
	_, err := install(ctx)
	return err
}

// Client installs the client if it is missing, runs its script with args, and returns the output.
func Client(ctx context.Context, script string, args ...string) ([]byte, error) {
	dir, err := install(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"))
	return cmd.CombinedOutput()
}
