// Package executor is the library for programs that run turns: it opens a state directory, runs and
// stores turns there, and reads, merges, exports and deletes stored data.
//
// A program that embeds this package ships two programs for Linux beside its own:
//
//   - turn-agent, which runs inside each sandbox. "make build" embeds the agent in the package
//     internal/guest/agentbin of the checkout. The agent is not in git, so a module from a module
//     proxy has none: name a file in Options.AgentFile.
//   - runsc, the gVisor of this project, which "make build" writes to bin/runsc. Put runsc beside
//     the program or into PATH, or name a file in Options.Runsc. gVisor's own runsc is rejected.
//     A host with QEMU, or with Firecracker and KVM, needs no runsc.
//
// Both must have the version of the module. A sandbox that outlives the program also requires the
// command turn of this version: see Options.Holder.
//
// Building the program for Linux requires cgo and a C compiler, because the parser of the steps' languages is
// written in C.
//
// Sandboxes run on Linux. On other systems the package has the same types, Open returns an error of
// kind KindUnavailable, and a Planner checks documents and receipts. Without cgo, as on those
// systems, only the steps' bash is parsed.
//
// Errors are of type *turnstone.Error. turnstone.KindOf returns the kind of an error, and
// turnstone.HintOf the remedy.
package executor
