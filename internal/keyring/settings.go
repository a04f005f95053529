package keyring

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Settings are the settings of a keyring, as config.toml and the server's settings have them in the
// table [keys]. The tags are those of package server/config.
type Settings struct {
	Seal       string        `toml:"seal" default:"off" oneof:"off,session,one"`
	Wrap       string        `toml:"wrap" default:"file" oneof:"file,vault,age-plugin,client"`
	Recovery   []string      `toml:"recovery" kind:"recipient"`
	Passphrase string        `toml:"passphrase" kind:"secret"`
	Identities string        `toml:"identities" kind:"secret"`
	Recipient  string        `toml:"recipient" kind:"recipient"`
	Keep       time.Duration `toml:"keep" default:"1h" min:"1s" max:"24h"`
	Idle       time.Duration `toml:"idle" default:"10m" min:"1s" max:"24h"`
}

// VaultSettings are the settings of a wrapping key in Vault, the table [vault].
type VaultSettings struct {
	Address   string        `toml:"address" kind:"path"`
	CA        string        `toml:"ca" kind:"file"`
	Namespace string        `toml:"namespace" kind:"path"`
	Mount     string        `toml:"mount" kind:"path" default:"transit"`
	Key       string        `toml:"key" kind:"path"`
	Token     string        `toml:"token" kind:"secret"`
	Timeout   time.Duration `toml:"timeout" default:"5s" min:"100ms" max:"1m"`
}

// Check reports settings that do not fit together, with the key of one of them. A zero value is its
// default.
func (s *Settings) Check(v *VaultSettings) (key string, err error) {
	if key := s.secretIn(v); key != "" { // not quoted
		return key, errors.New("holds a secret: put the secret into a file that other users cannot " +
			"read, and name the file, or the recipient")
	}
	switch {
	case !slices.Contains([]string{"", "off", "session", "one"}, s.Seal):
		return "keys.seal", errors.New("is not one of off, session, one")
	case s.Wrap != "" && s.kind() == "":
		return "keys.wrap", errors.New("is not one of file, vault, age-plugin, client")
	case s.kind() == KindVault && v.Address == "":
		return "keys.wrap", errors.New("is vault, and vault.address is missing")
	case v.Address != "" && v.Key == "":
		return "vault.address", errors.New("needs vault.key, the name of a key of the transit engine")
	case v.Address == "" && v.Key != "":
		return "vault.key", errors.New("needs vault.address")
	case s.kind() == KindPlugin && s.Identities == "":
		return "keys.wrap", errors.New("is age-plugin, and keys.identities is missing")
	case s.Recipient != "" && s.Identities == "":
		return "keys.recipient", errors.New("needs keys.identities")
	case s.Keep < 0 || s.Keep > 24*time.Hour:
		return "keys.keep", errors.New("is not between 1s and 24h")
	case s.Idle < 0 || s.Idle > 24*time.Hour:
		return "keys.idle", errors.New("is not between 1s and 24h")
	case v.Timeout < 0 || v.Timeout > time.Minute:
		return "vault.timeout", errors.New("is not between 100ms and 1m")
	}
	return "", nil
}

// Primary returns the kind of wrapper for new keys.
func (s *Settings) Primary() Kind { return s.kind() }

// secretIn reports the key of a setting that has a secret in place of the name of its file, or of a
// recipient.
func (s *Settings) secretIn(v *VaultSettings) string {
	all := map[string]string{"keys.passphrase": s.Passphrase, "keys.identities": s.Identities,
		"keys.recipient": s.Recipient, "vault.token": v.Token,
		"keys.recovery": strings.Join(s.Recovery, "\n")}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		for line := range strings.Lines(strings.ToUpper(all[key])) {
			line = filepath.Base(line) // the server's settings make paths absolute
			if strings.HasPrefix(line, "AGE-") || strings.HasPrefix(line, "HVS.") ||
				strings.HasPrefix(line, "HVB.") || strings.HasPrefix(line, "-----BEGIN") {
				return key
			}
		}
	}
	return ""
}

// kind returns the kind that Wrap names; empty: none.
func (s *Settings) kind() Kind {
	switch k := Kind(s.Wrap); k {
	case "":
		return KindFile
	case KindFile, KindVault, KindPlugin, KindClient:
		return k
	}
	return ""
}
