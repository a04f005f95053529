// Package agentbin embeds the agent's program in the host's program. The build writes bin/agent
// before it builds the host's program; a checkout has only the folder.
package agentbin

import (
	"bytes"
	"embed"
	"os"
	"strings"

	"turnstone.dev/turnstone"
)

//go:embed all:bin
var files embed.FS

// A Program is the agent's static Linux program. Its digest is stored because hashing the program
// would cost more than all other steps that identify a machine's parts.
type Program struct {
	Digest turnstone.Digest
	Read   func() ([]byte, error)
}

// Agent returns the agent: the program in file, or the embedded program if file is empty. The
// error is of kind Unavailable if there is neither, and of kind Invalid if file is no program.
func Agent(file string) (Program, error) {
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return Program{}, turnstone.NewError("agent.load", turnstone.KindUnavailable,
				"agent", err).
				WithHint("unset TURN_AGENT, or set it to the path of turn-agent")
		}
		if !bytes.HasPrefix(b, []byte("\x7fELF\x02")) { // 64-bit: elf(5)
			return Program{}, turnstone.Errorf("agent.load", turnstone.KindInvalid, file,
				"is not a program for Linux").
				WithHint("name the file turn-agent in TURN_AGENT or Options.AgentFile")
		}
		return Program{turnstone.DigestBytes(b), func() ([]byte, error) { return b, nil }}, nil
	}
	read := func() ([]byte, error) { return files.ReadFile("bin/agent") }
	// written by the build in the format of sha256sum
	line, err := files.ReadFile("bin/agent.sha256")
	hex, _, _ := strings.Cut(string(line), " ")
	digest, bad := turnstone.ParseDigest("sha256:" + hex)
	if err != nil || bad != nil {
		return Program{}, turnstone.Errorf("agent.load", turnstone.KindUnavailable, "agent",
			"this program was built without the sandbox's agent").
			WithHint("run make build, which builds the agent first")
	}
	return Program{digest, read}, nil
}
