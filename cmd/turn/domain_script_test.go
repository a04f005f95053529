package main

import (
	"context"
	"net/http"
	"os"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/keyring/clientkey"
	"turnstone.dev/turnstone/internal/keyring/ringconfig"
	"turnstone.dev/turnstone/internal/keyring/vaulttest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/seal"
)

// domains makes domains in TURN_HOME with the settings there, or in another state directory: domains
// N [DIR]. "domains client" makes one whose key a client's key wraps.
func domains(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: domains N|client [DIR]")
	}
	root := ts.Getenv("TURN_HOME")
	if len(args) == 2 {
		root = ts.MkAbs(args[1])
	}
	dir, err := statedir.Open(root)
	ts.Check(err)
	c, err := config.Load(root)
	ts.Check(err)
	k, err := ringconfig.Open(ringconfig.Options{Dir: dir, Settings: c.Keys, Vault: c.Vault,
		Tenant: "local"})
	ts.Check(err)
	defer k.Close()
	if args[0] == "client" {
		holder := clientkey.New(clientkey.Options{})
		name, err := holder.Give(seal.NewKey())
		ts.Check(err)
		ring, err := keyring.New(keyring.Options{Dir: dir, Primary: keyring.KindClient,
			Wrappers: map[keyring.Kind]keyring.Wrapper{keyring.KindClient: holder}})
		ts.Check(err)
		_, err = ring.CreateBy(context.Background(), keyring.KindClient, holder.By(name))
		ts.Check(err)
		return
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	for range n {
		o, err := k.Create(context.Background())
		ts.Check(err)
		o.Close()
	}
}

// vaultKey is the key of a script's Vault, which is a **vaulttest.Server.
type vaultKey struct{}

// vault starts a server with Vault's transit API, whose address is VAULT, with the files VAULT_CA and
// VAULT_FILE of its token, and the keys turnstone and turnstone-acme: vault start. Later it makes it
// fail: vault sealed, vault denied, vault lost, vault away; vault ok.
func vault(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: vault start|sealed|denied|lost|away|ok")
	}
	if args[0] == "start" {
		dir := ts.MkAbs("vault")
		ts.Check(os.MkdirAll(dir, 0o700))
		s, err := vaulttest.Start(dir)
		ts.Check(err)
		ts.Defer(s.Away)
		s.Make("turnstone", true)
		s.Make("turnstone-acme", true)
		ts.Setenv("VAULT", s.URL)
		ts.Setenv("VAULT_CA", s.CA)
		ts.Setenv("VAULT_FILE", s.TokenFile)
		*ts.Value(vaultKey{}).(**vaulttest.Server) = s
		return
	}
	s := *ts.Value(vaultKey{}).(**vaulttest.Server)
	refuse := func(status int, text string) {
		s.Fail(func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			vaulttest.Refuse(w, status, text)
			return true
		})
	}
	switch args[0] {
	case "sealed":
		refuse(http.StatusServiceUnavailable, "Vault is sealed")
	case "denied":
		refuse(http.StatusForbidden, "permission denied")
	case "lost":
		refuse(http.StatusBadRequest, "encryption key not found")
	case "away":
		s.Away()
	case "ok":
		s.Fail(nil)
	default:
		ts.Fatalf("vault %s", args[0])
	}
}
