package config

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/suggest"
)

// GrantKeys are the front matter keys that Documents.Grant and callers can grant.
var GrantKeys = []string{"files", "home", "image", "lifetime", "network", "session", "snapshot"}

// Parse parses a configuration. An unknown key is an error because a policy with a misspelled key
// would have no effect.
func Parse(text string) (Config, error) {
	var c Config
	md, err := toml.Decode(text, &c)
	if err != nil {
		var fault toml.ParseError
		if errors.As(err, &fault) && fault.Message != "" {
			err = fmt.Errorf("line %d: %s", fault.Position.Line, fault.Message)
		}
		return Config{}, err
	}
	if u := md.Undecoded(); len(u) > 0 {
		return Config{}, unknownKey(u[0])
	}
	return c, c.check()
}

// unknownKey names the key and the nearest known key.
func unknownKey(key toml.Key) error {
	known, section := keysOf(reflect.TypeFor[Config]()), ""
	if i := slices.Index(known, key[0]); i >= 0 && len(key) > 1 {
		section = key[0] + "."
		known = keysOf(reflect.TypeFor[Config]().Field(i).Type)
	}
	word := strings.TrimPrefix(key.String(), section)
	nearest, _ := suggest.Nearest(word, known)
	return turnstone.Errorf("config.parse", turnstone.KindInvalid, "",
		"unknown key %q; the nearest known one is %q", key.String(), section+nearest).
		WithHint("use one of " + section + strings.Join(known, ", "+section))
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		keys = append(keys, t.Field(i).Tag.Get("toml"))
	}
	return keys
}

// check reports the first invalid value of c.
func (c *Config) check() error {
	n := c.Network
	if n.Default != "" && n.Default != "on" && n.Default != "off" {
		return fmt.Errorf(`network.default: %q is neither "on" nor "off"`, n.Default)
	}
	if c.Host != "" && c.Host != "auto" && c.Host != "local" {
		return fmt.Errorf(`host: %q is neither "auto" nor "local"; turn host use selects others`,
			c.Host)
	}
	if key, err := c.Keys.Check(&c.Vault); err != nil {
		return fmt.Errorf("%s %w", key, err)
	}
	if _, err := network.PolicyOf(&turnstone.NetworkSpec{Allow: n.Allow, Deny: n.Deny,
		DNS: n.DNS}); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	if _, err := network.PolicyOf(&turnstone.NetworkSpec{Allow: c.Documents.Allow}); err != nil {
		return fmt.Errorf("documents: %w", err)
	}
	for _, key := range c.Documents.Grant {
		if !slices.Contains(GrantKeys, key) {
			nearest, _ := suggest.Nearest(key, GrantKeys)
			return fmt.Errorf(
				"documents.grant: %q cannot be granted; the nearest key that can is %q", key,
				nearest)
		}
	}
	for what, list := range map[string][]string{"sessions": c.Documents.Sessions,
		"homes": c.Documents.Homes} {
		for _, pattern := range list {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				return fmt.Errorf("documents.%s: %q is not a pattern of names", what, pattern)
			}
		}
	}
	for _, host := range c.Images.Registries {
		if err := checkRegistry(host); err != nil {
			return fmt.Errorf("images.registries: %q %w", host, err)
		}
	}
	if err := c.checkKernel(); err != nil {
		return err
	}
	return c.Limits.check()
}

func (c *Config) checkKernel() error {
	for key, path := range map[string]string{"kernel": c.Kernel,
		"kernel_modules": c.KernelModules} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%s: %q is not an absolute path", key, path)
		}
	}
	if c.KernelModules != "" && c.Kernel == "" {
		return errors.New("kernel_modules: requires kernel, the image that the modules belong to")
	}
	return nil
}

// checkRegistry rejects everything except HOST and HOST:PORT.
func checkRegistry(host string) error {
	if strings.ContainsAny(host, "/@ *?#") || strings.Trim(host, ".:") == "" {
		return errors.New("is not HOST or HOST:PORT")
	}
	return nil
}
