// Where a process's arguments are. This file is added by Turnstone's build.

package linux

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// Offsets in Linux's struct prctl_mm_map, of 64-bit words but for exeFD.
const (
	mapArgStart = 56
	mapExeFD    = 100
	mapSize     = 104
)

// setMap implements prctl(PR_SET_MM, PR_SET_MM_MAP) for arguments and environment of the caller,
// which /proc shows of it. Other fields are ignored, but the executable cannot be changed.
func setMap(t *kernel.Task, addr hostarch.Addr, size uint64) error {
	var m [mapSize]byte
	if size != mapSize {
		return linuxerr.EINVAL
	}
	if _, err := t.CopyInBytes(addr, m[:]); err != nil {
		return err
	}
	if int32(binary.NativeEndian.Uint32(m[mapExeFD:])) != -1 {
		return linuxerr.EINVAL
	}
	var at [4]hostarch.Addr // of the arguments, then of the environment: start and end
	for i := range at {
		at[i] = hostarch.Addr(binary.NativeEndian.Uint64(m[mapArgStart+8*i:]))
	}
	for i := 0; i < len(at); i += 2 {
		r, ok := t.MemoryManager().CheckIORange(at[i], int64(at[i+1]-at[i]))
		if at[i] > at[i+1] || !ok || r.Start == 0 {
			return linuxerr.EINVAL
		}
	}
	mm := t.MemoryManager()
	mm.SetArgvStart(at[0])
	mm.SetArgvEnd(at[1])
	mm.SetEnvvStart(at[2])
	mm.SetEnvvEnd(at[3])
	return nil
}
