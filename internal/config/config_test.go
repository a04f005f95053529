package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/kernel"
)

const whole = `
kernel = "/srv/vmlinux"
kernel_modules = "/srv/modules/6.9.0"

[network]
default = "off"
allow = ["10.1.2.3:3128"]
deny = ["*.internal.example"]
locked = true
dns = "192.0.2.53:53"

[limits]
cpus = 4
memory = "2GiB"
disk = "8GiB"
timeout = "2h"
sandboxes = 8
output = "1MiB"
entries = 1000
file_size = "1GiB"
free_space = "10%"

[documents]
grant = ["snapshot"]
sessions = ["ci-*"]
homes = ["*"]
allow = ["10.0.0.0/8"]

[images]
registries = ["registry.corp.example:5000"]

[keys]
wrap = "vault"
recovery = ["age1x"]
keep = "30m"

[vault]
address = "https://vault.example.org:8200"
key = "turnstone"
timeout = "2s"
`

func TestParse(t *testing.T) {
	c, err := Parse(whole)
	if err != nil {
		t.Fatal(err)
	}
	l := c.Limits.For(Host{CPUs: 2, Memory: 8 << 30, Disk: 100 << 30})
	if l.CPUs != 4 || l.Memory != 2<<30 || l.Disk != 8<<30 ||
		time.Duration(l.Timeout) != 2*time.Hour || l.Sandboxes != 8 ||
		l.Output != 1<<20 || l.Entries != 1000 || l.FileSize != 1<<30 ||
		l.FreeSpace.Floor(1000) != 100 {
		t.Errorf("limits are %+v", l)
	}
	if c.GuestKernel() != (kernel.Choice{Image: "/srv/vmlinux", Modules: "/srv/modules/6.9.0"}) {
		t.Errorf("the kernel is %+v", c.GuestKernel())
	}
	if !c.Network.Locked || c.Documents.Sessions[0] != "ci-*" ||
		c.Images.Registries[0] != "registry.corp.example:5000" || c.Keys.Keep != 30*time.Minute ||
		c.Keys.Recovery[0] != "age1x" || c.Vault.Timeout != 2*time.Second {
		t.Errorf("read as %+v", c)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"[netwrk]\n":                                           `unknown key "netwrk"; the nearest known one is "network"`,
		"[network]\ndenny = []":                                `unknown key "network.denny"; the nearest known one is "network.deny"`,
		"[limits]\nmemroy = \"1GiB\"":                          `the nearest known one is "limits.memory"`,
		"[limits]\nmemory = \"1MiB\"":                          "a sandbox needs at least",
		"[limits]\nmemory = []":                                "memory",
		"[limits]\ncpus = 1000":                                "not between 1 and 64",
		"[limits]\nentries = 9000000000":                       "limits.entries",
		"[limits]\nsandboxes = -1":                             "limits.sandboxes",
		"[limits]\ntimeout = \"5\"":                            "is not a time",
		"[limits]\nfree_space = \"95%\"":                       "is not a percentage of the disk",
		"[limits]\nfree_space = \"NaN%\"":                      "is not a percentage of the disk",
		"[documents]\ngrant = [\"netwrok\"]":                   `the nearest key that can is "network"`,
		"[documents]\ngrant = [\"env\"]":                       `"env" cannot be granted`,
		"[documents]\nsessions = [\"[\"]":                      "documents.sessions",
		"[documents]\nallow = [\"224.0.0.1\"]":                 "documents: allow: 224.0.0.1",
		"[images]\nregistries = [\"a.example/x\"]":             "is not HOST or HOST:PORT",
		"[network]\ndefault = \"maybe\"":                       "network.default",
		"[network\n":                                           "line 2",
		"kernel = \"vmlinux\"":                                 `kernel: "vmlinux" is not an absolute path`,
		"kernel_modules = \"/lib/modules\"":                    "requires kernel",
		"host = \"https://turn.example.org\"":                  "turn host use",
		"[keys]\nwrap = \"vault\"":                             "keys.wrap is vault, and vault.address is missing",
		"[keys]\nwrap = \"x\"":                                 "keys.wrap is not one of file, vault, age-plugin, client",
		"[keys]\nwrapp = \"x\"":                                `unknown key "keys.wrapp"; the nearest known one is "keys.wrap"`,
		"[keys]\nkeep = \"48h\"":                               "keys.keep is not between 1s and 24h",
		"[keys]\nidentities = \"AGE-SECRET-KEY-1\"":            "keys.identities holds a secret",
		"[keys]\nrecovery = [\"age1x\", \"age-secret-key-1\"]": "keys.recovery holds a secret",
		"[vault]\ntoken = \"hvs.x\"":                           "vault.token holds a secret",
		"[vault]\nkey = \"x\"":                                 "vault.key needs vault.address",
		"[kernel]\nimage = \"/a\"":                             "kernel",
		"kernal = \"/a\"":                                      `the nearest known one is "kernel"`,
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, want %q", text, err, want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, File)
	if c, err := Load(dir); err != nil || c.Network.Locked {
		t.Fatalf("without a file: %+v, %v", c, err)
	}
	write := func(text string, mode os.FileMode) {
		t.Helper()
		_ = os.Remove(file)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(want string) {
		t.Helper()
		if _, err := Load(dir); turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), want) || turnstone.HintOf(err) == "" {
			t.Errorf("gives %v, want %q", err, want)
		}
	}
	write(whole, 0o644)
	if c, err := Load(dir); err != nil || !c.Network.Locked {
		t.Errorf("read as %+v, %v", c, err)
	}
	write(whole, 0o620)
	refused("other users can write it (mode 0620)")
	write(whole, 0o602)
	refused("other users can write it (mode 0602)")
	write(whole+"#"+strings.Repeat("x", maxFile), 0o600)
	refused("it is larger than 1.0 MiB")
	write("[netwrk]", 0o600)
	refused("unknown key")
	_ = os.Remove(file)
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("not a regular file")
	target := filepath.Join(t.TempDir(), File)
	// if a link's target is missing, another user may be able to create it
	for _, text := range []string{whole, ""} {
		_ = os.Remove(file)
		_ = os.Remove(target)
		if text != "" {
			if err := os.WriteFile(target, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(target, file); err != nil {
			t.Fatal(err)
		}
		refused("it is a symbolic link")
	}
	if os.Geteuid() == 0 {
		write(whole, 0o600)
		if err := os.Chown(file, 4242, -1); err != nil {
			t.Fatal(err)
		}
		refused("it belongs to user 4242")
	}
}

// The defaults admit a document without requests, and every limit of a host is set.
func TestDefaultLimits(t *testing.T) {
	shape := turnstone.DefaultShape()
	rapid.Check(t, func(t *rapid.T) {
		h := Host{CPUs: rapid.IntRange(1, 512).Draw(t, "cpus"),
			Memory: turnstone.Bytes(rapid.Int64Range(0, 1<<50).Draw(t, "memory")),
			Disk:   turnstone.Bytes(rapid.Int64Range(0, 1<<60).Draw(t, "disk"))}
		l := Limits{}.For(h)
		if l.CPUs < shape.CPUs || turnstone.Bytes(l.Memory) < shape.Memory ||
			turnstone.Bytes(l.Disk) < shape.Disk {
			t.Fatalf("%+v refuses the default shape", l)
		}
		if l.CPUs > turnstone.MaxCPUs || h.Disk > 8<<30 && turnstone.Bytes(l.Disk) > h.Disk ||
			h.Memory > 2<<30 && turnstone.Bytes(l.Memory) > h.Memory {
			t.Fatalf("%+v is more than %+v has", l, h)
		}
		if l.Timeout <= 0 || l.Sandboxes <= 0 || l.Output <= 0 ||
			l.Entries <= 0 || l.FileSize <= 0 {
			t.Fatalf("%+v leaves a limit open", l)
		}
		if l.Entries > defaultEntries || h.Memory > 1<<30 &&
			l.Entries*entryCost > int64(h.Memory)/4 {
			t.Fatalf("%d entries in %d bytes of memory", l.Entries, h.Memory)
		}
		total := rapid.Uint64Range(0, 1<<60).Draw(t, "total")
		if f := l.FreeSpace.Floor(total); f > total/20 || f > defaultFree {
			t.Fatalf("the floor of %d bytes is %d", total, f)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(whole)
	f.Add("[limits]\nfree_space = \"5%\"\nfree_space = 3")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(text)
		if err != nil {
			return
		}
		l := c.Limits.For(HostOf("/"))
		if l.CPUs < 1 || l.Entries < 1 || l.Entries > maxEntries || l.Sandboxes < 1 ||
			l.Memory < Size(turnstone.MinMemory) {
			t.Errorf("%q gives %s", text, fmt.Sprintf("%+v", l))
		}
	})
}
