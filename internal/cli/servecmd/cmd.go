// Package servecmd is the command turn serve. It starts turn-server, the program beside turn that
// has the server: a server's libraries would delay the start of every other command.
package servecmd

import "strings"

// Cmd is the command. Its flags win over the environment and the file.
type Cmd struct {
	Flags `embed:""`
}

// Flags are the flags of the command, which turn-server has, too.
type Flags struct {
	Role        []string `help:"Take these roles: gateway, controller, node." placeholder:"ROLE"`
	Listen      string   `help:"Listen for callers at this address." placeholder:"HOST:PORT"`
	Local       bool     `help:"Serve this user alone, while it is in use."`
	E2B         string   `name:"e2b" help:"Listen for E2B's clients at this address." placeholder:"HOST:PORT"`
	Config      string   `help:"Read the settings from this file." type:"path" placeholder:"FILE"`
	CheckConfig bool     `help:"Print the effective settings, and end."`
}

// Examples are shown in the help.
func (*Cmd) Examples() []string {
	return []string{
		"turn serve",
		"turn serve --local",
		"turn serve --check-config",
		"turn serve --role gateway --config /etc/turnstone/gateway.toml",
	}
}

// args returns the command line of the flags.
func (f *Flags) args() []string {
	args := []string{"serve"}
	for _, one := range []struct{ name, value string }{{"role", strings.Join(f.Role, ",")},
		{"listen", f.Listen}, {"e2b", f.E2B}, {"config", f.Config}} {
		if one.value != "" {
			args = append(args, "--"+one.name+"="+one.value)
		}
	}
	if f.Local {
		args = append(args, "--local")
	}
	if f.CheckConfig {
		args = append(args, "--check-config")
	}
	return args
}
