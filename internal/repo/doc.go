// Package repo stores the data that turns leave: sessions, records, states and their files. It
// answers queries, and removes unreachable data.
//
// The package runs nothing: it does not depend on sandboxes, drivers or the wire. Package bundle
// moves sessions between state directories, package merging merges their turns, and package place
// finds the packs.
package repo
