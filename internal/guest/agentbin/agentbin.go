// Package agentbin carries the agent's program inside the host's. It is built
// into bin/agent before the host's program is; a checkout has only the folder.
package agentbin

import (
	"embed"
	"os"
	"strings"

	"turnstone.dev/turnstone"
)

//go:embed all:bin
var files embed.FS

// A Program is the agent's static Linux program. Its digest is known without
// reading it: hashing it costs more than all else that finds what a machine is
// made of.
type Program struct {
	Digest turnstone.Digest
	Read   func() ([]byte, error)
}

// Agent returns the agent: the file that the environment variable TURN_AGENT names,
// else the embedded one. The error is of kind Unavailable when there is neither.
func Agent() (Program, error) {
	if path := os.Getenv("TURN_AGENT"); path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return Program{}, turnstone.NewError("agent.load", turnstone.KindUnavailable, "TURN_AGENT",
				err).WithHint("unset TURN_AGENT, or let it name the turn-agent program")
		}
		return Program{turnstone.DigestBytes(b), func() ([]byte, error) { return b, nil }}, nil
	}
	read := func() ([]byte, error) { return files.ReadFile("bin/agent") }
	line, err := files.ReadFile("bin/agent.sha256") // of the build, as sha256sum prints it
	hex, _, _ := strings.Cut(string(line), " ")
	digest, bad := turnstone.ParseDigest("sha256:" + hex)
	if err != nil || bad != nil {
		return Program{}, turnstone.Errorf("agent.load", turnstone.KindUnavailable, "agent",
			"this program was built without the sandbox's agent").
			WithHint("run make build, which builds the agent first")
	}
	return Program{digest, read}, nil
}
