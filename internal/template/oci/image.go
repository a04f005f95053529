package oci

import (
	"turnstone.dev/turnstone"
)

// Bounds of one image. One that goes beyond is refused.
const (
	MaxLayers   = 512
	parallel    = 3         // layers that are downloaded at once
	maxManifest = 4 << 20   // bytes of a manifest, an index or a config; registries take no larger ones
	maxPacked   = 32 << 30  // bytes of all layers as they are stored
	maxUnpacked = 64 << 30  // bytes of all layers unpacked
	maxEntries  = 1_000_000 // files, folders and links in the image, whiteouts and what they hid included
	maxMeta     = 256 << 20 // bytes of all names, targets and attributes

	MaxKept = 2 << 30 // bytes of downloads that are kept for other images, unless Options say otherwise

	// A layer may be this many times as large unpacked as packed, and freeUnpacked
	// bytes more. Layers of programs have a ratio of 2 to 4.
	maxRatio     = 200
	freeUnpacked = 256 << 20
)

// An Image is what a reference stands for on linux/amd64.
type Image struct {
	Reference Reference        `json:"-"`
	Digest    turnstone.Digest `json:"digest"`   // what the registry has the reference for: an index or a manifest
	Manifest  turnstone.Digest `json:"manifest"` // of linux/amd64; Digest, where that is no index
	Layers    []Layer          `json:"layers"`   // the lowest first

	Env     []string `json:"env,omitempty"`     // NAME=VALUE, as the image has them
	User    string   `json:"user,omitempty"`    // a name or a number, with :GROUP if the image has one
	Workdir string   `json:"workdir,omitempty"` // absolute and clean; empty: none
}

// A Layer is one of an image's layers.
type Layer struct {
	Digest turnstone.Digest `json:"digest"`  // of the bytes that the registry has
	DiffID turnstone.Digest `json:"diff_id"` // of the tar stream in it
	Size   int64            `json:"size"`    // of the bytes that the registry has
}
