// The filter of Turnstone's sandboxes, for the build. This file is added by Turnstone's
// build.

package config

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
)

// TurnstoneOptions are those that Turnstone's sandboxes run with: systrap, no network of
// the host, no files of the host.
func TurnstoneOptions() (Options, error) {
	constructor, err := platform.Lookup("systrap")
	if err != nil {
		return Options{}, err
	}
	infos := constructor.PrecompiledSeccompInfo()
	if len(infos) != 1 {
		return Options{}, fmt.Errorf("systrap has %d filters, not one", len(infos))
	}
	return Options{Platform: infos[0]}, nil
}

// TurnstoneProgram compiles their filter, as PrecompiledPrograms does with every
// combination of options there is.
func TurnstoneProgram() (precompiledseccomp.Program, error) {
	opt, err := TurnstoneOptions()
	if err != nil {
		return precompiledseccomp.Program{}, err
	}
	var names []string
	for name := range opt.Vars() {
		names = append(names, name)
	}
	return precompiledseccomp.Precompile(opt.ConfigKey(), names, func(vars precompiledseccomp.Values) *seccomp.Program {
		allowed, denied := rules(opt, vars)
		return &seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: denied.Copy()}, {Rules: allowed.Copy(), Action: seccomp.Allow}},
			Options:  SeccompOptions(opt),
		}
	})
}
