// Package repo keeps what turns leave: sessions, records, states and their files. It answers
// questions about them, and removes what is unreachable.
//
// It runs nothing: it knows no sandbox, no substrate and no wire. Package bundle moves sessions
// between state directories, package merging merges their turns, and package place finds the packs.
package repo
