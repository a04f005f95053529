package cli

import (
	"turnstone.dev/turnstone/executor"
)

// Settings are the values of the environment. Libraries read no variable of turn: they take
// options.
type Settings struct {
	executor.Options
	Host       string // address or name of the server; empty: see App.Server
	Token      string // for the server; never printed
	Substrate  string
	Session    string
	Background string
	// PassphraseFile is the path of a file with the passphrase of the caller's key.
	PassphraseFile string
}

// A Variable is an environment variable that turn reads.
type Variable struct {
	Name string
	Help string
	at   func(s *Settings) *string // destination of the value; nil: the user of the value reads it
}

// Variables lists all variables. If two have one destination, the first with a value wins.
var Variables = []Variable{
	{"TURN_HOME", "Use this state directory.", func(s *Settings) *string { return &s.Dir }},
	{"TURN_STORE", "Store objects in this bucket: s3://BUCKET/PREFIX.",
		func(s *Settings) *string { return &s.Store }},
	{"TURN_DATABASE", "Store sessions in PostgreSQL: postgres://USER@HOST/NAME.",
		func(s *Settings) *string { return &s.Database }},
	{"TURN_SESSION", "Set the current session, which - stands for.", func(s *Settings) *string { return &s.Session }},
	{"TURN_HOST", "Use this host: https://…, unix:PATH, NAME, auto or local.",
		func(s *Settings) *string { return &s.Host }},
	{"TURN_TOKEN", "Show this token to the host.", func(s *Settings) *string { return &s.Token }},
	{"TURN_SUBSTRATE", "Set the default of --substrate.",
		func(s *Settings) *string { return &s.Substrate }},
	{"TURN_BACKGROUND", "Set to off: start no background work.",
		func(s *Settings) *string { return &s.Background }},
	{"TURN_PASSPHRASE_FILE", "Read the passphrase of the key from this file.",
		func(s *Settings) *string { return &s.PassphraseFile }},
	{"VAULT_TOKEN", "Show this token to Vault, without vault.token.",
		func(s *Settings) *string { return &s.VaultToken }},
	{"SSH_AUTH_SOCK", "Sign with keys of this SSH agent.", nil},
	{"TURN_RUNSC", "Use this runsc of gVisor.", func(s *Settings) *string { return &s.Runsc }},
	{"TURN_QEMU", "Use this qemu-system-x86_64.", func(s *Settings) *string { return &s.QEMU }},
	{"TURN_FIRECRACKER", "Use this firecracker.",
		func(s *Settings) *string { return &s.Firecracker }},
	{"TURN_JAILER", "Use this jailer of Firecracker.",
		func(s *Settings) *string { return &s.Jailer }},
	{"TURN_AGENT", "Use this turn-agent in sandboxes.",
		func(s *Settings) *string { return &s.AgentFile }},
	{"TURN_KERNEL", "Boot this kernel in microVMs.",
		func(s *Settings) *string { return &s.Kernel }},
	{"TURN_KERNEL_MODULES", "Use this folder lib/modules/VERSION of the kernel.",
		func(s *Settings) *string { return &s.KernelModules }},
	{"TURN_DEBIAN_MIRROR", "Download packages from this Debian archive.",
		func(s *Settings) *string { return &s.DebianMirror }},
	{"TURN_DEBIAN_SECURITY_MIRROR", "Download security updates from this archive.",
		func(s *Settings) *string { return &s.DebianSecurityMirror }},
	{"PIP_INDEX_URL", "Download Python packages from this index.",
		func(s *Settings) *string { return &s.PipIndex }},
	{"npm_config_registry", "Download npm packages from this registry.",
		func(s *Settings) *string { return &s.NpmRegistry }},
	{"NPM_CONFIG_REGISTRY", "Same as npm_config_registry.",
		func(s *Settings) *string { return &s.NpmRegistry }},
	{"XDG_DATA_HOME", "Create the default state directory in this directory.", nil},
	{"AWS_*", "Set credentials and endpoint of TURN_STORE.", nil},
	{"PGPASSFILE", "Read the password of TURN_DATABASE from this file.", nil},
	{"http_proxy, https_proxy, no_proxy", "Use these proxies for downloads.", nil},
	{"SSL_CERT_FILE, SSL_CERT_DIR", "Trust these certificate authorities.", nil},
	{"NO_COLOR", "Print no colors if set.", nil},
}

// environment reads the variables with getenv.
func environment(getenv func(string) string) Settings {
	var s Settings
	for _, v := range Variables {
		if v.at == nil {
			continue
		}
		if to := v.at(&s); *to == "" {
			*to = getenv(v.Name)
		}
	}
	return s
}
