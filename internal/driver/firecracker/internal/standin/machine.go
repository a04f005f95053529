package main

import (
	"encoding/json"
	"fmt"
	"hash/crc64"
	"os"
	"syscall"
	"time"
)

// A disk is a drive.
type disk struct {
	ID       string `json:"drive_id"`
	Path     string `json:"path_on_host"`
	ReadOnly bool   `json:"is_read_only"`
	Root     bool   `json:"is_root_device"`

	f *os.File
}

// open opens the file as the device does, and logs which file it is.
func (d *disk) open() error {
	flag := os.O_RDWR
	if d.ReadOnly {
		flag = os.O_RDONLY
	}
	f, err := os.OpenFile(d.Path, flag, 0)
	if err != nil {
		return says("Error manipulating the backing file: %v %s", err, d.Path)
	}
	d.f = f
	st, err := f.Stat()
	if err != nil {
		return err
	}
	head := make([]byte, 32)
	n, _ := f.ReadAt(head, 0)
	writable := false
	if !d.ReadOnly { // the last sector, which is unused
		_, err := f.WriteAt(make([]byte, 512), st.Size()-512)
		writable = err == nil
	}
	note(map[string]any{"drive": d.ID, "size": st.Size(), "head": string(head[:n]),
		"writable": writable, "inode": st.Sys().(*syscall.Stat_t).Ino})
	return nil
}

// start boots: the guest's agent gets ready a little later.
func (v *vmm) start() error {
	if v.boot == nil {
		return says("Cannot start microvm without kernel configuration.")
	}
	if v.vsock == nil || len(v.drives) == 0 {
		return fmt.Errorf("this stand-in's guest needs a vsock and drives")
	}
	v.state = running
	go func() {
		time.Sleep(20 * time.Millisecond)
		switch v.fault {
		case "panic":
			fmt.Print("[    0.1] Kernel panic - not syncing: VFS: Unable to mount \x1b[2J root " +
				"fs\r\n")
			os.Exit(0)
		case "panic and hang":
			fmt.Print("[    0.1] Kernel panic - not syncing: No working init found\r\n")
			return
		case "poweroff":
			os.Exit(0)
		case "silent":
			fmt.Print("[    0.1] still thinking\r\n")
			return
		}
		fmt.Print("turnstone-ag")
		time.Sleep(5 * time.Millisecond)
		fmt.Print("ent: ready\r\n")
	}()
	return v.vsock.serve()
}

func (v *vmm) setState(body []byte) error {
	var want struct{ State string }
	if err := json.Unmarshal(body, &want); err != nil {
		return err
	}
	if v.state == notStarted {
		return says("The requested operation is not supported before starting the microVM.")
	}
	switch want.State {
	case "Paused":
		v.state = paused
	case "Resumed":
		v.state = running
	}
	v.vsock.stop(v.state == paused)
	return nil
}

// A saved is the content of the state file: as in Firecracker's, it contains the paths of the
// drives and of the vsock.
type saved struct {
	Memory int64
	Drives []*disk
	Vsock  *vsock
}

var table = crc64.MakeTable(crc64.ISO)

// create writes a snapshot. It contains all of the memory, which is mostly zeros. It resets the
// guest's vsock.
func (v *vmm) create(body []byte) error {
	var p struct {
		Type   string `json:"snapshot_type"`
		State  string `json:"snapshot_path"`
		Memory string `json:"mem_file_path"`
	}
	if err := json.Unmarshal(body, &p); err != nil {
		return err
	}
	if v.state != paused {
		return says("Cannot create snapshot: the microVM is not paused.")
	}
	b := marshal(saved{v.memory, v.drives, v.vsock})
	sum := crc64.Checksum(b, table)
	if err := os.WriteFile(p.State, fmt.Appendf(b, "\n%d", sum), 0o600); err != nil {
		return says("Cannot write the microVM state: %v", err)
	}
	m, err := os.OpenFile(p.Memory, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return says("Cannot write the memory: %v", err)
	}
	defer m.Close()
	size := v.memory << 20
	if v.fault == "short-memory" {
		size /= 2
	}
	if err := m.Truncate(size); err != nil {
		return err
	}
	v.vsock.reset()
	if p.Type == "Diff" {
		return v.difference(m)
	}
	if _, err := m.WriteAt(make([]byte, 8<<20), 0); err != nil {
		return err
	}
	_, err = m.WriteAt([]byte("the guest's memory"), 3<<20)
	return err
}

// difference writes the guest's writes since the previous snapshot: the snapshot's number into page
// 1000 plus that number, and zeros over the data at 3 MiB.
func (v *vmm) difference(m *os.File) error {
	if !v.tracked {
		return says("Cannot create snapshot: the stand-in keeps no swap, and no pages.")
	}
	v.snapshots++
	page := make([]byte, 4096)
	if _, err := m.WriteAt(page, 3<<20); err != nil {
		return err
	}
	copy(page, fmt.Sprintf("difference %d", v.snapshots))
	_, err := m.WriteAt(page, int64(1000+v.snapshots)*4096)
	return err
}

func (v *vmm) load(body []byte) error {
	var p struct {
		State   string `json:"snapshot_path"`
		Backend struct {
			Type string `json:"backend_type"`
			Path string `json:"backend_path"`
		} `json:"mem_backend"`
		Resume  bool `json:"resume_vm"`
		Tracked bool `json:"track_dirty_pages"`
	}
	if err := json.Unmarshal(body, &p); err != nil {
		return err
	}
	if v.configured || v.state != notStarted {
		return says("Load snapshot error: Loading a microVM snapshot not allowed after " +
			"configuring boot-specific resources.")
	}
	b, err := os.ReadFile(p.State)
	if err != nil {
		return says("Load snapshot error: %v", err)
	}
	var sum uint64
	at := len(b) - 1
	for at > 0 && b[at] != '\n' {
		at--
	}
	if _, err := fmt.Sscan(string(b[at:]), &sum); err != nil ||
		crc64.Checksum(b[:at], table) != sum {
		return says("Load snapshot error: CRC64 validation failed")
	}
	var s saved
	if err := json.Unmarshal(b[:at], &s); err != nil {
		return err
	}
	memory, err := os.Open(p.Backend.Path)
	if err != nil {
		return says("Load snapshot error: Failed to load guest memory: %v", err)
	}
	if st, err := memory.Stat(); err != nil || st.Size() != s.Memory<<20 ||
		p.Backend.Type != "File" {
		return says("Load snapshot error: Failed to load guest memory: wrong size")
	}
	for _, d := range s.Drives {
		if err := d.open(); err != nil {
			return says("Load snapshot error: Failed to restore devices: %v", err)
		}
	}
	v.tracked = p.Tracked
	v.memory, v.drives, v.vsock, v.state = s.Memory, s.Drives, s.Vsock, paused
	v.vsock.fault = v.fault
	if err := v.vsock.listen(); err != nil {
		return says("Load snapshot error: Failed to restore devices: %v", err)
	}
	if p.Resume {
		v.state = running
	}
	v.vsock.stop(v.state == paused)
	return v.vsock.serve()
}
