package snapshots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/substrate"
)

// Virtual is the Kind of the substrates that run virtual machines.
var Virtual = Kind{Manifest: ManifestFile, New: ".new-", End: "-"}

// The files of a virtual machine's snapshot.
const (
	RAMFile      = "ram"
	ScratchFile  = "scratch"
	StateFile    = "state" // state of its devices and CPUs
	ManifestFile = "manifest.json"
)

// MaxState bounds the device state, in bytes; typical states have 10 KiB to some 100 KiB.
const MaxState = 64 << 20

// A Manifest describes the snapshot of a virtual machine on disk. Each start checks the device
// state against its digest. Hashing the memory would take longer than the start: its stamp shows
// whether the file was touched, and then the digest decides.
type Manifest[ID comparable] struct {
	Identity ID               `json:"identity"`
	Taken    time.Time        `json:"taken"`
	State    turnstone.Digest `json:"state"`
	RAM      filestamp.Stamp  `json:"ram"`
	Scratch  filestamp.Stamp  `json:"scratch"`
}

// Seal adds the manifest m, with the stamps of memory and disk, to the folder dir, which contains
// the other files.
func (m Manifest[ID]) Seal(ctx context.Context, dir string) (err error) {
	if m.RAM, err = filestamp.Of(ctx, filepath.Join(dir, RAMFile)); err != nil {
		return err
	}
	if m.Scratch, err = filestamp.Quick(filepath.Join(dir, ScratchFile)); err != nil {
		return err
	}
	return Virtual.Describe(dir, m)
}

// Open returns the device state of the snapshot in dir if it is id's and intact. A missing snapshot
// is fs.ErrNotExist; an unusable snapshot is an error of kind Integrity, of the operation op.
func Open[ID comparable](ctx context.Context, op turnstone.Op, dir string, id ID) (
	state []byte, err error) {
	damaged := func(what string, err error) ([]byte,
		error) {
		return nil, Damaged(op, dir, what, err)
	}
	b, err := ReadAtMost(filepath.Join(dir, ManifestFile), MaxManifest)
	if err != nil {
		return nil, err
	}
	var m Manifest[ID]
	if err := json.Unmarshal(b, &m); err != nil {
		return damaged("manifest", err)
	}
	if m.Identity != id {
		return damaged("manifest", errors.New("was taken of another machine"))
	}
	if state, err = readState(dir, m.State); err != nil {
		return damaged("device state", err)
	}
	if _, err := m.RAM.Check(ctx, filepath.Join(dir, RAMFile)); err != nil {
		return damaged("memory", err)
	}
	// the disk is too large to hash, and mostly holes: a touched disk is not used
	if !m.Scratch.Fresh(filepath.Join(dir, ScratchFile)) {
		return damaged("scratch disk", errors.New("was touched"))
	}
	return state, nil
}

func readState(dir string, want turnstone.Digest) ([]byte, error) {
	state, err := ReadAtMost(filepath.Join(dir, StateFile), MaxState)
	if err != nil {
		return nil, err
	}
	if turnstone.DigestBytes(state) != want {
		return nil, errors.New("does not match its digest")
	}
	return state, nil
}

// Damaged returns the error for a damaged part of the snapshot in dir.
func Damaged(op turnstone.Op, dir, what string, err error) error {
	return turnstone.Errorf(op, turnstone.KindIntegrity, dir, "%s: %w", what, err)
}

// liveFormat is the version of a Live.
const liveFormat = 1

// A Live describes a machine that was saved while running. Memory and disk are checked by their
// stamps only, which is cheap: such a folder is used soon and then removed.
type Live[ID comparable] struct {
	Format   int              `json:"format"`
	Identity ID               `json:"identity"` // identity of the machine that it was started from
	Taken    time.Time        `json:"taken"`
	State    turnstone.Digest `json:"state"`
	RAM      filestamp.Stamp  `json:"ram"`
	Scratch  filestamp.Stamp  `json:"scratch"`
	Layers   []Layer          `json:"layers,omitempty"`
}

// A Layer is an image in a sandbox's slot.
type Layer struct {
	Path  string          `json:"path"`
	Stamp filestamp.Stamp `json:"stamp"`
}

// Layers describes the images at paths.
func Layers(paths []string) (layers []Layer, err error) {
	for _, path := range paths {
		st, err := filestamp.Quick(path)
		if err != nil {
			return nil, err
		}
		layers = append(layers, Layer{path, st})
	}
	return layers, nil
}

// SameLayers checks that paths are the images with the given names, in that order.
func SameLayers(names, paths []string) error {
	if len(names) != len(paths) {
		return fmt.Errorf("it has %d, %d were given", len(names), len(paths))
	}
	for i := range names {
		if names[i] != filepath.Base(paths[i]) {
			return fmt.Errorf("it has %.80q, %.80q was given", names[i], filepath.Base(paths[i]))
		}
	}
	return nil
}

// Seal adds the manifest to the folder dir, which contains the other files: m, with its format, the
// stamps of memory and disk, and layers, the paths of the machine's images.
func (m Live[ID]) Seal(dir string, layers []string) (err error) {
	m.Format = liveFormat
	if m.RAM, err = filestamp.Quick(filepath.Join(dir, RAMFile)); err != nil {
		return err
	}
	if m.Scratch, err = filestamp.Quick(filepath.Join(dir, ScratchFile)); err != nil {
		return err
	}
	if m.Layers, err = Layers(layers); err != nil {
		return err
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, ManifestFile), b, 0o600)
}

// OpenLive returns the manifest in dir, and its device state, if the folder is intact and a machine
// can resume from it: differs names the first property that has changed since, and returns "" if
// there is none. Errors are of kind Integrity or Unavailable, of the operation op.
func OpenLive[ID comparable](op turnstone.Op, dir string, differs func(ID) string) (
	man Live[ID], state []byte, err error) {
	damaged := func(what string, err error) (Live[ID], []byte, error) {
		return man, nil, DamagedLive(op, dir, what, err)
	}
	b, err := ReadAtMost(filepath.Join(dir, ManifestFile), MaxManifest)
	if err != nil {
		return damaged("manifest", err)
	}
	if err := json.Unmarshal(b, &man); err != nil {
		return damaged("manifest", err)
	}
	if man.Format != liveFormat {
		return man, nil, turnstone.Errorf(op, turnstone.KindUnavailable, dir,
			"it has format %d, this program reads %d", man.Format, liveFormat).
			WithHint("use the version of turn that wrote it")
	}
	if err := Misfit(op, differs(man.Identity)); err != nil {
		return man, nil, err
	}
	if state, err = readState(dir, man.State); err != nil {
		return damaged("device state", err)
	}
	if !man.RAM.Fresh(filepath.Join(dir, RAMFile)) {
		return damaged("memory", errors.New("was touched"))
	}
	if !man.Scratch.Fresh(filepath.Join(dir, ScratchFile)) {
		return damaged("scratch disk", errors.New("was touched"))
	}
	if len(man.Layers) > substrate.MaxLayers {
		return damaged("layers", fmt.Errorf("there are %d", len(man.Layers)))
	}
	for _, layer := range man.Layers {
		if !layer.Stamp.Fresh(layer.Path) {
			return damaged("layer "+layer.Path, errors.New("was touched or is missing"))
		}
	}
	return man, state, nil
}

// HasHome returns the error for the snapshot of a running machine with a home disk.
func HasHome(op turnstone.Op, id turnstone.SandboxID) error {
	return turnstone.Errorf(op, turnstone.KindInvalid, string(id),
		"it has a home disk, which has one writer at a time").
		WithHint("clone a sandbox that has no home")
}

// On returns m with the layers of the saved machine, and without a home.
func (m Live[ID]) On(on substrate.Machine) substrate.Machine {
	on.Layers, on.Home = nil, ""
	for _, l := range m.Layers {
		on.Layers = append(on.Layers, l.Path)
	}
	return on
}

// Misfit returns the error for a machine that cannot resume because of a different property why;
// nil if why is empty.
func Misfit(op turnstone.Op, why string) error {
	if why == "" {
		return nil
	}
	return turnstone.Errorf(op, turnstone.KindUnavailable, "the saved machine",
		"it was saved with another %s", why).
		WithHint("start from the files of the saved machine instead")
}

// DamagedLive returns the error for a damaged part of the machine that was saved in dir.
func DamagedLive(op turnstone.Op, dir, what string, err error) error {
	return turnstone.Errorf(op, turnstone.KindIntegrity, dir, "%s: %w", what, err).
		WithHint("start from the files of the saved machine instead")
}
