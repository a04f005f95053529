// Package hosts keeps what a client knows of servers: addresses, the keys of their nodes, tokens, and
// its own key, in the state directory:
//
//	hosts.toml      addresses and keys of nodes; no secrets
//	client/key      the client's X25519 key, mode 0600
//	client/tokens/  tokens of hosts, a file each, mode 0600
//	client/seal/    keys that seal the client's sessions at hosts, a file each, mode 0600
package hosts

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
)

// File is the name of the list in the state directory.
const File = "hosts.toml"

// Bounds of the list.
const (
	maxFile  = 1 << 20 // bytes
	maxHosts = 100
	maxNodes = 256 // of a host
	maxKeys  = 8   // of a node, while its key is rotated

	maxFormer = 64 // roots that a root has followed
)

// Names that no host has: this machine alone, and this machine's server if it runs.
const (
	Local = "local"
	Auto  = "auto"
)

// A Host is a server that a client knows.
type Host struct {
	URL string `toml:"url"`
	// TokenFile is the absolute path of a file with the token; empty: none.
	TokenFile string `toml:"token_file,omitempty"`
	// SealFile is the absolute path of a file with the key that seals this client's sessions there;
	// empty: none.
	SealFile string `toml:"seal_file,omitempty"`
	// Nodes has the keys that sign the statements of each node, as "ssh-ed25519 BASE64".
	Nodes map[string][]string `toml:"nodes,omitempty"`
	// Root is the operator's root, whose certificates make nodes trusted; nil: Nodes alone count.
	Root *Root `toml:"root,omitempty"`
}

// A List is the content of hosts.toml.
type List struct {
	Current string           `toml:"current,omitempty"` // the host that commands use; empty: none
	Hosts   map[string]*Host `toml:"hosts,omitempty"`
}

// CheckName reports a name that no host can have. The error is of kind Invalid.
func CheckName(name string) error {
	if name == Local || name == Auto {
		return turnstone.Errorf("host.name", turnstone.KindInvalid, fmt.Sprintf("host %.80q", name),
			"is a word with a meaning of its own").WithHint("choose another name")
	}
	return turnstone.CheckName("host", name)
}

// Parse reads hosts.toml, which may be damaged. The error is of kind Invalid.
func Parse(text string) (*List, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("is larger than %d bytes", maxFile)
	}
	l := &List{}
	meta, err := toml.Decode(text, l)
	if err != nil {
		return nil, err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("the key %.80q is not known", unknown[0].String())
	}
	for _, k := range meta.Keys() { // the decoder ignores another value where a table belongs
		n := len(k)
		if (n == 1 && k[0] == "hosts" || n == 3 && (k[2] == "nodes" || k[2] == "root")) &&
			meta.Type(k...) != "Hash" {
			return nil, fmt.Errorf("%s is no table", k)
		}
	}
	return l, l.check()
}

func (l *List) check() error {
	if len(l.Hosts) > maxHosts {
		return fmt.Errorf("has more than %d hosts", maxHosts)
	}
	for _, name := range slices.Sorted(maps.Keys(l.Hosts)) {
		if err := CheckName(name); err != nil {
			return err
		}
		if err := l.Hosts[name].check(); err != nil {
			return fmt.Errorf("hosts.%s: %w", name, err)
		}
	}
	if c := l.Current; c != "" && c != Auto && c != Local && l.Hosts[c] == nil {
		return fmt.Errorf("current: there is no host %.80q", c)
	}
	return nil
}

func (h *Host) check() error {
	a, err := remote.ParseAddress(h.URL)
	if err != nil {
		return err
	}
	if a.String() != h.URL {
		return fmt.Errorf("url: write %s", a)
	}
	for key, path := range map[string]string{"token_file": h.TokenFile, "seal_file": h.SealFile} {
		if strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return errors.New(key + ": it has control characters")
		}
	}
	if h.Root != nil {
		if err := h.Root.check(); err != nil {
			return fmt.Errorf("root: %w", err)
		}
		if len(h.Nodes) > 0 { // a pin that nobody remembers
			return errors.New("nodes: they count beside the root: remove one of both")
		}
	}
	if len(h.Nodes) > maxNodes {
		return fmt.Errorf("nodes: there are more than %d", maxNodes)
	}
	for _, node := range slices.Sorted(maps.Keys(h.Nodes)) {
		if err := turnstone.CheckName("node", node); err != nil {
			return fmt.Errorf("nodes: %w", err)
		}
		keys := h.Nodes[node]
		if len(keys) == 0 || len(keys) > maxKeys {
			return fmt.Errorf("nodes.%s: there are %d keys, not 1 to %d", node, len(keys), maxKeys)
		}
		for _, k := range keys {
			if _, err := key.Parse(k); err != nil {
				return fmt.Errorf("nodes.%s: %w", node, err)
			}
		}
	}
	return nil
}

// Encode returns the content of hosts.toml.
func (l *List) Encode() ([]byte, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("# Servers that turn knows: see turn host --help.\n")
	if err := toml.NewEncoder(&b).Encode(l); err != nil {
		return nil, err
	}
	if b.Len() > maxFile { // Parse would refuse it
		return nil, turnstone.Errorf("host.save", turnstone.KindExhausted, "the list of hosts",
			"would have %d bytes; the limit is %d", b.Len(), maxFile).
			WithHint("remove hosts that are not in use with turn host rm")
	}
	return b.Bytes(), nil
}

// Find returns the host with a name or an address, and its name. The error is of kind NotFound.
func (l *List) Find(nameOrURL string) (string, *Host, error) {
	if h := l.Hosts[nameOrURL]; h != nil {
		return nameOrURL, h, nil
	}
	for _, name := range slices.Sorted(maps.Keys(l.Hosts)) {
		if l.Hosts[name].URL == nameOrURL {
			return name, l.Hosts[name], nil
		}
	}
	hint := "list the hosts with turn host ls, or add one with turn host add NAME URL"
	if strings.Contains(nameOrURL, ":") {
		hint = "add it with turn host add NAME " + nameOrURL
	}
	return "", nil, turnstone.Errorf("host.find", turnstone.KindNotFound, "host "+nameOrURL,
		"is not known").WithHint(hint)
}

// Pin replaces the trusted keys of t, which keeps its revocations, by those that may sign statements
// about a node, or, without a name, about any node of the host.
func (h *Host) Pin(t *key.Trust, node string) error {
	t.Forget()
	for name, keys := range h.Nodes {
		if node != "" && node != name {
			continue
		}
		for _, text := range keys {
			k, err := key.Parse(text)
			if err != nil {
				return err
			}
			t.Add(key.Entry{Key: k, Role: key.Node, Name: name})
		}
	}
	return nil
}
