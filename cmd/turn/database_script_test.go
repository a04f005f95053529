package main

import (
	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/pg/pgtest"
)

// databaseKey is the key of a script's PostgreSQL server, which is a **pgtest.Server.
type databaseKey struct{}

// database starts a PostgreSQL server, which DATABASE and TURN_DATABASE name from then on: "database
// start". "database away" ends it at once, and "database back" starts it again.
func database(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: database start|away|back")
	}
	s := ts.Value(databaseKey{}).(**pgtest.Server)
	switch args[0] {
	case "start":
		var err error
		*s, err = pgtest.Begin("fsync=off")
		ts.Check(err)
		ts.Defer((*s).Remove)
		ts.Setenv("DATABASE", (*s).URL)
		ts.Setenv("TURN_DATABASE", (*s).URL)
	case "away":
		ts.Check((*s).Stop())
	case "back":
		ts.Check((*s).Start())
	default:
		ts.Fatalf("database %s", args[0])
	}
}
