//go:build !turnstone_client

package proofcmd

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/hostdir"
	"turnstone.dev/turnstone/internal/terminal"
)

// Run prints the FS hash of a folder; docs/fs-hash.md defines its content.
func (c *HashCmd) Run(a *cli.App) error {
	out := HashReport{}
	opts := tree.BuildOptions{Counts: &out.Counts}
	if c.Owner != "" {
		uid, gid, err := parseOwner(c.Owner)
		if err != nil {
			return cli.Usage(err)
		}
		opts.Adjust = func(at *tree.Attr) { at.UID, at.GID = uid, gid }
	}
	ctx, stop := cli.Interruptible(a.Say, cli.ExitAborted)
	defer stop()
	dir, err := hostdir.Open(c.Dir)
	if err != nil {
		if errors.Is(err, syscall.ENOTDIR) {
			return cli.Exit(cli.ExitUsage, err)
		}
		return cli.Fail(err)
	}
	defer dir.Close()
	ref, err := tree.Build(ctx, tree.NewHasher(), dir, opts)
	if err != nil {
		return cli.Exit(cli.ExitAborted, err)
	}
	out.Hash = ref.Hash
	return a.Result(out, nil, func(w io.Writer) { terminal.Println(w, out.Hash) })
}

// parseOwner parses the numbers of a user and a group, such as "1000:100".
func parseOwner(s string) (uid, gid uint32, err error) {
	user, group, ok := strings.Cut(s, ":")
	u, uerr := strconv.ParseUint(user, 10, 32)
	g, gerr := strconv.ParseUint(group, 10, 32)
	if !ok || uerr != nil || gerr != nil {
		return 0, 0, fmt.Errorf("--owner: %q is not UID:GID: write two numbers, such as 0:0", s)
	}
	return uint32(u), uint32(g), nil
}

// A HashReport is the output of turn hash.
type HashReport struct {
	Hash turnstone.Digest `json:"fs_hash"`
	tree.Counts
}
