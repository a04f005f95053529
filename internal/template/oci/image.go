package oci

import (
	"turnstone.dev/turnstone"
)

// Bounds of one image. A larger image is rejected.
const (
	maxLayers = 512
	parallel  = 3 // layers that are downloaded concurrently
	// bytes of a manifest, an index or a config; registries accept no larger ones
	maxManifest = 4 << 20
	maxPacked   = 32 << 30 // bytes of all layers as stored
	maxUnpacked = 64 << 30 // bytes of all layers unpacked
	// files, folders and links in the image, including whiteouts and the files that they hid
	maxEntries = 1_000_000
	maxMeta    = 256 << 20 // bytes of all names, targets and attributes

	// bytes of downloads that are kept for other images, unless Options set another bound
	MaxKept = 2 << 30

	// A layer may be this many times larger unpacked than packed, plus freeUnpacked bytes. Layers
	// of programs have a ratio of 2 to 4.
	maxRatio     = 200
	freeUnpacked = 256 << 20
)

// Reads is the present value of Image.Reads. 1: Entrypoint and Cmd are read.
const Reads = 1

// Bounds of what an image starts: more than the kernel lets a program have is of no use.
const (
	maxArgs     = 1000
	maxArgBytes = 64 << 10
)

// An Image is what a reference refers to on linux/amd64.
type Image struct {
	Reference Reference `json:"-"`
	// the registry's digest of the reference: an index or a manifest
	Digest   turnstone.Digest `json:"digest"`
	Manifest turnstone.Digest `json:"manifest"` // of linux/amd64; Digest, unless that is an index
	Layers   []Layer          `json:"layers"`   // the lowest first

	Env []string `json:"env,omitempty"` // NAME=VALUE, as the image has them
	// a name or a number, with :GROUP if the image has one
	User    string `json:"user,omitempty"`
	Workdir string `json:"workdir,omitempty"` // absolute and clean; empty: none
	// what a container of the image starts
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// Reads is the version of the reader of the config: records of earlier ones lack fields.
	Reads int `json:"reads,omitempty"`

	Artifact *Artifact `json:"template,omitempty"` // of a template in a registry; nil: an image
}

// A Layer is one of an image's layers.
type Layer struct {
	Digest turnstone.Digest `json:"digest"`  // of the bytes in the registry
	DiffID turnstone.Digest `json:"diff_id"` // of the uncompressed tar stream
	Size   int64            `json:"size"`    // of the bytes in the registry
}

// Command returns what a container of the image starts.
func (img *Image) Command() turnstone.ImageCommand {
	return turnstone.ImageCommand{Entrypoint: img.Entrypoint, Cmd: img.Cmd, Workdir: img.Workdir,
		Unknown: img.Reads < Reads}
}
