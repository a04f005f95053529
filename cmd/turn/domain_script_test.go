package main

import (
	"context"
	"net/http"
	"os"
	"path"
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
// VAULT_FILE of its token, and the keys turnstone, turnstone-acme and turnstone-other: "vault start".
// Later it makes it fail, for one key if it is named: "vault sealed|denied|lost|cut|slow [KEY]"; "vault
// ok" ends that, and "vault away" ends the server.
func vault(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 || len(args) > 2 {
		ts.Fatalf("usage: vault start|sealed|denied|lost|cut|slow|away|ok [KEY]")
	}
	if args[0] == "start" {
		startVault(ts)
		return
	}
	s := *ts.Value(vaultKey{}).(**vaulttest.Server)
	fail := func(answer func(w http.ResponseWriter, r *http.Request)) {
		s.Fail(func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			if len(args) == 2 && path.Base(r.URL.Path) != args[1] {
				return false
			}
			answer(w, r)
			return true
		})
	}
	refuse := func(status int, text string) {
		fail(func(w http.ResponseWriter, _ *http.Request) { vaulttest.Refuse(w, status, text) })
	}
	switch args[0] {
	case "sealed":
		refuse(http.StatusServiceUnavailable, "Vault is sealed")
	case "denied":
		refuse(http.StatusForbidden, "permission denied")
	case "lost":
		refuse(http.StatusBadRequest, "encryption key not found")
	case "cut":
		fail(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	case "slow":
		fail(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	case "away":
		s.Away()
	case "ok":
		s.Fail(nil)
	default:
		ts.Fatalf("vault %s", args[0])
	}
}

func startVault(ts *testscript.TestScript) {
	dir := ts.MkAbs("vault")
	ts.Check(os.MkdirAll(dir, 0o700))
	s, err := vaulttest.Start(dir)
	ts.Check(err)
	ts.Defer(s.Away)
	for _, name := range []string{"turnstone", "turnstone-acme", "turnstone-other"} {
		s.Make(name, true)
	}
	ts.Setenv("VAULT", s.URL)
	ts.Setenv("VAULT_CA", s.CA)
	ts.Setenv("VAULT_FILE", s.TokenFile)
	*ts.Value(vaultKey{}).(**vaulttest.Server) = s
}
