// How links are saved, as gVisor's generator writes it. This file is added by Turnstone's build.

package overlay

import (
	"context"

	"gvisor.dev/gvisor/pkg/state"
)

func (l *links) StateTypeName() string {
	return "pkg/sentry/fsimpl/overlay.links"
}

func (l *links) StateFields() []string {
	return []string{
		"work",
		"index",
		"files",
	}
}

// +checklocksignore
func (l *links) StateSave(stateSinkObject state.Sink) {
	stateSinkObject.Save(0, &l.work)
	stateSinkObject.Save(1, &l.index)
	stateSinkObject.Save(2, &l.files)
}

// +checklocksignore
func (l *links) StateLoad(ctx context.Context, stateSourceObject state.Source) {
	stateSourceObject.Load(0, &l.work)
	stateSourceObject.Load(1, &l.index)
	stateSourceObject.Load(2, &l.files)
}

func (f *linkedFile) StateTypeName() string {
	return "pkg/sentry/fsimpl/overlay.linkedFile"
}

func (f *linkedFile) StateFields() []string {
	return []string{
		"dentries",
		"names",
		"lower",
		"entry",
	}
}

// +checklocksignore
func (f *linkedFile) StateSave(stateSinkObject state.Sink) {
	stateSinkObject.Save(0, &f.dentries)
	stateSinkObject.Save(1, &f.names)
	stateSinkObject.Save(2, &f.lower)
	stateSinkObject.Save(3, &f.entry)
}

// +checklocksignore
func (f *linkedFile) StateLoad(ctx context.Context, stateSourceObject state.Source) {
	stateSourceObject.Load(0, &f.dentries)
	stateSourceObject.Load(1, &f.names)
	stateSourceObject.Load(2, &f.lower)
	stateSourceObject.Load(3, &f.entry)
}

func init() {
	state.Register((*links)(nil))
	state.Register((*linkedFile)(nil))
}
