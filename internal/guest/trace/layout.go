package trace

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// The layout of the shared memory, equal to tracer.c. All numbers are little-endian.
const (
	magic = 0x31435254

	offReason     = 8
	offPid        = 12
	offStart      = 16
	offNextRecord = 24
	offNextSite   = 28
	offCommands   = 32
	offDropped    = 40
	offSiteless   = 48
	offState      = 56
	offStateLen   = 60
	offReplaced   = 64
	offReplaceLen = 68
	offName       = 72
	lenName       = 256
	offEnded      = offName + lenName
	offStreams    = 384
	lenStream     = 64

	offSites   = 4096 + 4*8192
	lenSite    = 256
	offText    = 56
	offRecords = offSites + MaxSites*lenSite
	lenRecord  = 112
	offAux     = offRecords + MaxRecords*lenRecord + 2304
	lenAux     = 1 << 20
	offEnv     = offAux + lenAux
	lenShared  = offEnv + maxState
)

// The library's start status.
const (
	reasonNone = iota
	reasonTracing
	reasonNotBash
	reasonVersion
	reasonCode
	reasonMemory
	reasonNoDlsym
	reasonMachine
	reasonOddCommand
)

const (
	flagAsync = 1 << iota
	flagPipeIn
	flagPipeOut
	flagLeft
	flagProgram
	flagSubstituted
	flagExit
	flagOut0
	flagOut1
	flagErr0
	flagErr1
	flagSignal
	flagNegated
	flagTrap
)

const (
	recordOpen   = 1
	recordClosed = 2
)

// shared is a step's memory. Its bytes may change during a read.
type shared []byte

func (s shared) word(off int) *uint32 { return (*uint32)(unsafe.Pointer(&s[off])) }
func (s shared) long(off int) *uint64 { return (*uint64)(unsafe.Pointer(&s[off])) }

func (s shared) load(off int) uint32   { return atomic.LoadUint32(s.word(off)) }
func (s shared) load64(off int) uint64 { return atomic.LoadUint64(s.long(off)) }

func stream(which int) int { return offStreams + (which-1)*lenStream }

// A rawRecord and a rawSite are copies of the memory at a single moment.
type (
	rawRecord [lenRecord]byte
	rawSite   [lenSite]byte
)

func (s shared) record(i int) (r rawRecord) {
	off := offRecords + i*lenRecord
	state := s.load(off)
	copy(r[:], s[off:off+lenRecord])
	binary.LittleEndian.PutUint32(r[:], state)
	return r
}

func (s shared) site(i int) (r rawSite) {
	off := offSites + i*lenSite
	ready := s.load(off + 8)
	copy(r[:], s[off:off+lenSite])
	binary.LittleEndian.PutUint32(r[8:], ready)
	return r
}

func (r *rawRecord) u32(off int) uint32 { return binary.LittleEndian.Uint32(r[off:]) }
func (r *rawRecord) u64(off int) uint64 { return binary.LittleEndian.Uint64(r[off:]) }
func (r *rawSite) u32(off int) uint32   { return binary.LittleEndian.Uint32(r[off:]) }
func (r *rawSite) u64(off int) uint64   { return binary.LittleEndian.Uint64(r[off:]) }
