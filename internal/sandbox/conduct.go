package sandbox

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// conduct gives the machine of src its script: the configuration, and req's own commands. The
// machine performs them before its host is connected; the host then sends the same commands, and
// gets the results.
func (req *Request) conduct(src *Source) error {
	if len(req.Script) == 0 {
		return nil
	}
	d := src.Machine.Determinism
	if d == nil || substrate.TierOf(src.Driver) != turnstone.TierStrict {
		return errors.New("a script for a machine that is not deterministic")
	}
	first, err := Call(wire.MethodSandboxConfigure,
		req.configuration(req.Template, src.Machine, req.deterministicHostname(),
			substrate.StrictScratch))
	if err != nil {
		return err
	}
	own := *d
	own.Script, own.Limit = slices.Concat([]substrate.Call{first}, req.Script), req.Limit
	own.Memory = req.Memory
	src.Machine.Determinism = &own
	req.Progress("the steps run under an instruction clock; their output follows at the end")
	return nil
}

// Call returns a command of a script.
func Call(method string, params any) (substrate.Call, error) {
	b, err := json.Marshal(params)
	return substrate.Call{Method: method, Params: b}, err
}

// TimeUp reports whether err says that a script did not end in time.
func TimeUp(err error) bool { return errors.Is(err, substrate.ErrTimeUp) }

// deterministicHostname returns the host name of a deterministic sandbox.
func (req *Request) deterministicHostname() string {
	return cmp.Or(req.Hostname, deterministicHostname)
}
