package qemu

import (
	"fmt"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
)

// disks says what is in the slots.
type disks struct {
	layers int
	home   bool
}

// slotDevice has one queue: a layer is mostly read from the guest's page cache.
const slotDevice = "virtio-blk-pci,disable-legacy=on,num-queues=1"

// slots are the disks that a machine is booted with empty, so that a restored one
// can be given images: to the guest they have always been there. It opens none
// before it is told to, and an empty one has no file on the host.
func slots(in disks) []string {
	var args []string
	for i := range substrate.MaxLayers {
		set := 3 + i
		node := fmt.Sprintf("driver=null-co,size=%d,read-zeroes=on,read-only=on", substrate.SlotSize)
		if i < in.layers {
			args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%d", fdLayers+i, set))
			node = fmt.Sprintf("driver=file,filename=/dev/fdset/%d,locking=off,read-only=on", set)
		}
		args = append(args, slot(substrate.LayerSerial(i), node)...)
	}
	node := fmt.Sprintf("driver=null-co,size=%d,read-zeroes=on", substrate.SlotSize)
	if in.home {
		args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%d", fdHome, 3+substrate.MaxLayers))
		node = fmt.Sprintf("driver=file,filename=/dev/fdset/%d,locking=off,discard=unmap", 3+substrate.MaxLayers)
	}
	return append(args, slot(substrate.HomeSerial, node)...)
}

func slot(name, node string) []string {
	return []string{"-blockdev", node + ",node-name=" + name, "-device", slotDevice + ",drive=" + name + ",serial=" + name}
}

// fill opens what m has for the slots.
func (f *files) fill(m substrate.Machine) error {
	if len(m.Layers) > substrate.MaxLayers {
		return turnstone.Errorf("qemu.restore", turnstone.KindInvalid, "layers",
			"there are %d, and a machine takes %d", len(m.Layers), substrate.MaxLayers)
	}
	for _, path := range m.Layers {
		file, err := openSlot(path, os.O_RDONLY)
		if err != nil {
			return err
		}
		f.layers = append(f.layers, file)
	}
	var err error
	if m.Home != "" {
		f.home, err = openSlot(m.Home, os.O_RDWR)
	}
	return err
}

// openSlot opens an image of exactly the size that the guest takes its disk for:
// it has learned that at its boot, and another size would be an error of reading
// somewhere in the middle of its work.
func openSlot(path string, flag int) (*os.File, error) {
	damaged := func(err error) error {
		return turnstone.NewError("qemu.restore", turnstone.KindIntegrity, path, err).
			WithHint("the image cannot be used; remove it")
	}
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return nil, damaged(err)
	}
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Size() != substrate.SlotSize) {
		err = fmt.Errorf("it is not a file of %d bytes", substrate.SlotSize)
	}
	if err != nil {
		_ = f.Close()
		return nil, damaged(err)
	}
	return f, nil
}
