// Package script is the form in which a deterministic machine gets its commands: all of them before
// its first instruction, in a disk in its memory. The agent performs them (Conductor), and answers
// its host from the results when the host sends the same commands.
package script

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"turnstone.dev/turnstone/substrate"
)

// Word on the kernel's command line marks a deterministic machine of the tier strict. The names of
// its disks follow, by address: they are in its memory (NVDIMM), because a virtio disk completes
// requests at times that depend on the host. Disk is the name of the disk with the script.
const (
	Word = "turnstone.strict="
	Disk = "script"
)

// magic begins a script, and end closes it.
const (
	magic = "turnstone script 1\n"
	end   = "end of script\n"
)

// The bounds of a script. A turn has at most some thousand steps.
const (
	maxCalls = 100_000
	maxHead  = 2 << 20 // bytes; an environment has at most 1 MiB
)

// A head is a command without its data.
type head struct {
	Method   string          `json:"method"`
	Params   json.RawMessage `json:"params"`
	Data     bool            `json:"data,omitempty"`
	Size     int64           `json:"size,omitempty"`
	Timeout  int64           `json:"timeout,omitempty"` // in nanoseconds
	Continue bool            `json:"continue,omitempty"`
}

// Size returns at least the number of bytes that Encode writes.
func Size(calls []substrate.Call) int64 {
	const around = 1 << 10 // of a call, beside its parameters and its data
	n := int64(around)
	for _, c := range calls {
		n += c.Size + int64(len(c.Method)) + 6*int64(len(c.Params)) + around
	}
	return n
}

// Encode writes calls to w. The same calls result in the same bytes.
func Encode(w io.Writer, calls []substrate.Call) error {
	if len(calls) > maxCalls {
		return fmt.Errorf("a script of %d commands; %d are possible", len(calls), maxCalls)
	}
	out := bufio.NewWriter(w)
	_, _ = out.WriteString(magic) // Flush returns the error
	put := func(n int) { _ = binary.Write(out, binary.BigEndian, uint32(n)) }
	put(len(calls))
	for _, c := range calls {
		b, err := json.Marshal(head{c.Method, c.Params, c.Data != nil, c.Size, int64(c.Timeout),
			c.Continue})
		if err == nil && len(b) > maxHead {
			err = errors.New("its parameters are too large")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Method, err)
		}
		put(len(b))
		_, _ = out.Write(b)
		if c.Data == nil {
			continue
		}
		n, err := io.Copy(out, io.NewSectionReader(c.Data, 0, c.Size))
		if err == nil && n != c.Size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Method, err)
		}
	}
	_, _ = out.WriteString(end)
	return out.Flush()
}

// Decode reads a script from the first size bytes of r, whose rest is ignored. The data of the
// commands stays in r.
func Decode(r io.ReaderAt, size int64) ([]substrate.Call, error) {
	d := decoder{r: r, size: size}
	d.expect(magic)
	n := d.number(maxCalls)
	var calls []substrate.Call
	for range n {
		c := d.call()
		if d.err != nil {
			break
		}
		calls = append(calls, c)
	}
	d.expect(end)
	if d.err != nil {
		return nil, fmt.Errorf("the script is damaged at byte %d: %w", d.at, d.err)
	}
	return calls, nil
}

// A decoder reads a script until its first error.
type decoder struct {
	r        io.ReaderAt
	at, size int64
	err      error
}

// bytes returns the next n bytes; nil after an error.
func (d *decoder) bytes(n int64) []byte {
	if d.err == nil && n > d.size-d.at {
		d.err = io.ErrUnexpectedEOF
	}
	if d.err != nil {
		return nil
	}
	b := make([]byte, n)
	if _, err := d.r.ReadAt(b, d.at); err != nil && err != io.EOF {
		d.err = err
		return nil
	}
	d.at += n
	return b
}

func (d *decoder) expect(text string) {
	if b := d.bytes(int64(len(text))); d.err == nil && string(b) != text {
		d.err = fmt.Errorf("%q is missing", text)
	}
}

func (d *decoder) number(most int64) int64 {
	b := d.bytes(4)
	if d.err != nil {
		return 0
	}
	n := int64(binary.BigEndian.Uint32(b))
	if n > most {
		d.err = fmt.Errorf("the number %d is too large", n)
		return 0
	}
	return n
}

func (d *decoder) call() (c substrate.Call) {
	b := d.bytes(d.number(maxHead))
	if d.err != nil {
		return c
	}
	var h head
	if d.err = json.Unmarshal(b, &h); d.err != nil {
		return c
	}
	if !Scripted(h.Method) || h.Timeout < 0 || h.Size < 0 || h.Size > 0 && !h.Data ||
		h.Size > d.size-d.at {
		d.err = fmt.Errorf("the command %q is impossible", h.Method)
		return c
	}
	c = substrate.Call{Method: h.Method, Params: h.Params, Timeout: time.Duration(h.Timeout),
		Continue: h.Continue, Size: h.Size}
	if h.Data {
		c.Data = io.NewSectionReader(d.r, d.at, h.Size)
		d.at += h.Size
	}
	return c
}
