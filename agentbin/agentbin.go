// Package agentbin carries the agent's program inside the host's. It is built
// into bin/agent before the host's program is; a checkout has only the folder.
package agentbin

import (
	"embed"
	"errors"
	"os"

	"turnstone.dev/turnstone"
)

//go:embed all:bin
var files embed.FS

// Agent returns the agent's static Linux program: the file that the environment
// variable TURN_AGENT names, else the embedded one. The error is of kind
// Unavailable when there is neither.
func Agent() ([]byte, error) {
	if path := os.Getenv("TURN_AGENT"); path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, &turnstone.Error{Op: "agent.load", Kind: turnstone.Unavailable, Subject: "TURN_AGENT", Err: err,
				Hint: "unset TURN_AGENT, or let it name the turn-agent program"}
		}
		return b, nil
	}
	b, err := files.ReadFile("bin/agent")
	if err != nil {
		return nil, &turnstone.Error{Op: "agent.load", Kind: turnstone.Unavailable, Subject: "agent",
			Err:  errors.New("this program was built without the sandbox's agent"),
			Hint: "run make build, which builds the agent first"}
	}
	return b, nil
}
