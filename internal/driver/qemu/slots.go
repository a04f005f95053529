package qemu

import (
	"fmt"
	"os"

	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/substrate"
)

// disks returns the slots' disks.
type disks struct {
	layers int
	home   bool
}

// slotDevice has one queue: a layer is mostly read from the guest's page cache.
const slotDevice = "virtio-blk-pci,disable-legacy=on,num-queues=1"

// slots returns the disks that are empty when a machine boots, so that a restored machine can be
// given images: for the guest the disks have always existed. The guest opens a disk only on
// request, and an empty disk has no file on the host.
func slots(in disks) []string {
	var args []string
	for i := range substrate.MaxLayers {
		set := 3 + i
		node := fmt.Sprintf("driver=null-co,size=%d,read-zeroes=on,read-only=on",
			substrate.SlotSize)
		if i < in.layers {
			args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%d", fdLayers+i, set))
			node = fmt.Sprintf("driver=file,filename=/dev/fdset/%d,locking=off,read-only=on", set)
		}
		args = append(args, slot(substrate.LayerSerial(i), node)...)
	}
	node := fmt.Sprintf("driver=null-co,size=%d,read-zeroes=on", substrate.SlotSize)
	if in.home {
		args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%d", fdHome, 3+substrate.MaxLayers))
		node = fmt.Sprintf("driver=file,filename=/dev/fdset/%d,locking=off,discard=unmap",
			3+substrate.MaxLayers)
	}
	return append(args, slot(substrate.HomeSerial, node)...)
}

func slot(name, node string) []string {
	return []string{"-blockdev", node + ",node-name=" + name,
		"-device", slotDevice + ",drive=" + name + ",serial=" + name}
}

// fill opens m's images for the slots.
func (f *files) fill(m substrate.Machine) (err error) {
	if f.layers, err = disk.OpenLayers(restoreOp, m.Layers); err == nil && m.Home != "" {
		f.home, err = disk.OpenSlot(restoreOp, m.Home, os.O_RDWR)
	}
	return err
}
