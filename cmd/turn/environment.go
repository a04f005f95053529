package main

import (
	"turnstone.dev/turnstone/executor"
)

// settings are what the environment says. The libraries read no variable of turn's: they are
// given options.
type settings struct {
	executor.Options
	substrate  string
	session    string
	background string
}

// A variable is one that turn reads.
type variable struct {
	name string
	help string
	at   func(s *settings) *string // where the value goes; nil: it is read where it is used
}

// variables are all that turn reads. Where two have one place, the first with a value wins.
var variables = []variable{
	{"TURN_HOME", "State directory (default: ~/.local/share/turnstone).", func(s *settings) *string { return &s.Dir }},
	{"TURN_STORE", "Where to keep objects: s3://BUCKET/PREFIX.", func(s *settings) *string { return &s.Store }},
	{"TURN_SESSION", "Session that \"-\" stands for.", func(s *settings) *string { return &s.session }},
	{"TURN_SUBSTRATE", "Default of --substrate.", func(s *settings) *string { return &s.substrate }},
	{"TURN_BACKGROUND", "\"off\" starts no work in the background.", func(s *settings) *string { return &s.background }},
	{"TURN_RUNSC", "Path of runsc.", func(s *settings) *string { return &s.Runsc }},
	{"TURN_FIRECRACKER", "Path of firecracker.", func(s *settings) *string { return &s.Firecracker }},
	{"TURN_JAILER", "Path of Firecracker's jailer.", func(s *settings) *string { return &s.Jailer }},
	{"TURN_AGENT", "Path of the agent that runs in sandboxes.", func(s *settings) *string { return &s.AgentFile }},
	{"TURN_KERNEL", "Kernel that microVMs boot.", func(s *settings) *string { return &s.Kernel }},
	{"TURN_KERNEL_MODULES", "The kernel's folder lib/modules/VERSION.", func(s *settings) *string { return &s.KernelModules }},
	{"TURN_DEBIAN_MIRROR", "Debian's archive.", func(s *settings) *string { return &s.DebianMirror }},
	{"TURN_DEBIAN_SECURITY_MIRROR", "Debian's security archive.", func(s *settings) *string { return &s.DebianSecurityMirror }},
	{"PIP_INDEX_URL", "Index of Python packages.", func(s *settings) *string { return &s.PipIndex }},
	{"npm_config_registry", "Registry of npm packages.", func(s *settings) *string { return &s.NpmRegistry }},
	{"NPM_CONFIG_REGISTRY", "The same.", func(s *settings) *string { return &s.NpmRegistry }},
	{"XDG_DATA_HOME", "Folder of the default state directory.", nil},
	{"AWS_*", "Credentials for TURN_STORE.", nil},
	{"http_proxy, https_proxy, no_proxy", "Proxies for downloads.", nil},
	{"SSL_CERT_FILE, SSL_CERT_DIR", "Certificate authorities.", nil},
	{"NO_COLOR", "Print no colors.", nil},
}

// environment reads the variables by getenv.
func environment(getenv func(string) string) settings {
	var s settings
	for _, v := range variables {
		if v.at == nil {
			continue
		}
		if to := v.at(&s); *to == "" {
			*to = getenv(v.name)
		}
	}
	return s
}
