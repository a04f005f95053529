package substratetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// Layers writes n layers' images that the test removes, and returns their paths. Each has
// /layers/<i>, replaces /layers/top, and removes the lower layer's entry in /layers/gone;
// /context/turns/<i>/receipt.md and /context/index.md.
func Layers(t testing.TB, n int) []string {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	for i := range n {
		path := filepath.Join(dir, fmt.Sprint(i))
		writeImage(t, path, func(w *erofs.Writer) {
			number := fmt.Sprint(i)
			for _, d := range []string{"/fs", "/fs/layers", "/fs/layers/gone", "/context",
				"/context/turns", "/context/turns/" + number} {
				check(t, w.Mkdir(d, 0o755))
			}
			put(t, w, "/fs/layers/"+number, number+"\n")
			put(t, w, "/fs/layers/top", number+"\n")
			put(t, w, "/fs/layers/gone/"+number, "")
			if i > 0 {
				check(t, w.Mknod(fmt.Sprintf("/fs/layers/gone/%d", i-1), 0o020000, 0))
			}
			put(t, w, "/context/turns/"+number+"/receipt.md", "receipt "+number+"\n")
			put(t, w, "/context/index.md", "index "+number+"\n")
		})
		paths = append(paths, path)
	}
	return paths
}

func writeImage(t testing.TB, path string, fill func(*erofs.Writer)) {
	t.Helper()
	f, err := os.Create(path)
	check(t, err)
	defer f.Close()
	w := erofs.Create(f, erofs.WithBuildTime(0, 0), erofs.WithTempDir(filepath.Dir(path)))
	fill(w)
	check(t, w.Close())
	check(t, f.Truncate(substrate.SlotSize))
}

func put(t testing.TB, w *erofs.Writer, path, text string) {
	t.Helper()
	f, err := w.Create(path)
	check(t, err)
	_, err = f.Write([]byte(text))
	check(t, err)
	check(t, f.Close())
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testLayers(t *testing.T, s substrate.Substrate, c Config) {
	_, client := c.clone(t, s)
	want(t, client, "ls -A /context; touch /context/x 2>/dev/null || echo read-only; "+
		"ls /layers 2>/dev/null; true", "read-only\n")
	for _, n := range []int{1, 2, substrate.MaxLayers} {
		m := c.Machine
		m.Layers = Layers(t, n)
		_, client := Clone(t, s, m, &c.Network)
		var numbers, receipts string
		for i := range n {
			numbers += fmt.Sprintln(i)
			receipts += fmt.Sprintf("receipt %d\n", i)
		}
		last := n - 1
		want(t, client, "cd /layers; cat [0-9]; cat top; ls gone",
			numbers+fmt.Sprintln(last)+fmt.Sprintln(last))
		want(t, client, "cat /context/turns/*/receipt.md /context/index.md",
			receipts+fmt.Sprintf("index %d\n", last))
		want(t, client, "for f in /context/x /context/turns/0/x; "+
			"do touch $f 2>/dev/null && echo wrote $f; done; rm -rf /context/index.md "+
			"2>/dev/null; ls /context", "index.md\nturns\n")
		// Writes go to the top, and the files that a machine needs exist.
		want(t, client, "echo new > /layers/0; rm /layers/top; mkdir /layers/top; "+
			"cat /layers/0; ls -d /layers/top; ls /dev/null /proc/self/stat /sys/kernel /run | "+
			"wc -l; hostname | diff - /etc/hostname && echo same", "new\n/layers/top\n"+countRun(t,
			client)+"same\n")
		want(t, client, "awk '$2 == \"/\" {fs = $3} END {print fs}' /proc/mounts; "+
			"df -P / | awk 'NR==2 {print $6}'; df -P > /dev/null; "+
			"df -P /context > /dev/null && echo ok", "overlay\n/\nok\n")
		// Processes see only the mounts that are meant for them.
		want(t, client, "awk '$2 ~ /layer|stack|scratch|lower|skel|merged/ || $2 == \"/home\" "+
			"{print}' /proc/mounts; awk '$2 == \"/context\" && $4 ~ /^ro,nosuid,nodev/ {print "+
			"\"context\"}' /proc/mounts; ls -d /layer /stack /scratch /lower /skel /merged "+
			"2>/dev/null; true", "context\n")
	}
}

// countRun counts the entries of the list above, which depend on the template.
func countRun(t *testing.T, client *wire.Client) string {
	t.Helper()
	out, _ := Shell(t, client, "ls /dev/null /proc/self/stat /sys/kernel /run | wc -l")
	return out
}

// testDamagedLayers puts invalid images into the slots. The machine must return an error or work; a
// clone without them must not be affected.
func testDamagedLayers(t *testing.T, s substrate.Substrate, c Config) {
	good := Layers(t, 2)
	whole, err := readStart(good[1])
	check(t, err)
	for name, content := range map[string][]byte{
		"empty": nil, "text": bytes.Repeat([]byte("not an image\n"), 1000),
		"half":           whole[:len(whole)/2],
		"no directories": emptyImage(t), "wild": wild(whole),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "image")
			check(t, os.WriteFile(path, content, 0o600))
			check(t, os.Truncate(path, substrate.SlotSize))
			m := c.Machine
			m.Layers = []string{good[0], path}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			vm, err := s.Restore(ctx, m)
			check(t, err)
			defer vm.Close()
			client, link, err := Configure(ctx, vm, m, &c.Network)
			if err != nil {
				if turnstone.KindOf(err) != turnstone.KindUnavailable ||
					!strings.Contains(err.Error(), "root file system") {
					t.Errorf("got %v", err)
				}
				return
			}
			defer func() { _ = client.Close(); _ = link.Close() }()
			Shell(t, client, "cat /layers/* /context/*; true")
			if name != "half" && name != "wild" {
				t.Error("the machine took it")
			}
		})
	}
	short := filepath.Join(t.TempDir(), "short")
	check(t, os.WriteFile(short, whole, 0o600))
	for name, layers := range map[string][]string{"size": {short}, "missing": {short + "er"},
		"folder": {t.TempDir()}} {
		m := c.Machine
		m.Layers = layers
		if vm, err := s.Restore(t.Context(), m); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				_ = vm.Close()
			}
		}
	}
	m := c.Machine
	m.Layers = Layers(t, substrate.MaxLayers+1)
	if vm, err := s.Restore(t.Context(), m); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("too many layers: %v", err)
		if err == nil {
			_ = vm.Close()
		}
	}
	_, client := c.clone(t, s)
	want(t, client, "echo fine", "fine\n")
}

// readStart reads an image up to the beginning of its padding.
func readStart(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 64<<10))
}

func emptyImage(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "empty")
	writeImage(t, path, func(*erofs.Writer) {})
	b, err := readStart(path)
	check(t, err)
	return b
}

// wild changes every seventh byte after the superblock.
func wild(image []byte) []byte {
	b := bytes.Clone(image)
	for i := 2048; i < len(b); i += 7 {
		b[i] ^= 0xa5
	}
	return b
}

// testFreeze reads a sandbox's writes from its frozen disk.
func testFreeze(t *testing.T, s substrate.Substrate, c Config) {
	vm, client := c.clone(t, s)
	d, ok := vm.(substrate.Disker)
	if !ok {
		t.Skip("this substrate has no disk that a host can read")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	secret := fmt.Sprintf("written-%d", time.Now().UnixNano())
	// The writer waits between its writes: a hypervisor that is emulated itself may interrupt no guest that never
	// waits, so that nothing else in it would run.
	want(t, client, "echo "+secret+" > /workspace/marker; mkfifo /tmp/never; "+
		"(while :; do echo x >> /workspace/busy; read -t 0.001 <> /tmp/never; done) & sleep 0.2; cd /tmp", "")
	res, err := client.StateFreeze(ctx)
	check(t, err)
	if res.Upper != "upper" {
		t.Errorf("upper: %q", res.Upper)
	}
	disk, err := d.Disk()
	check(t, err)
	defer disk.Close()
	if !contains(t, disk, secret) {
		t.Error("what was written is not on the disk")
	}
	var out bytes.Buffer
	if _, err := client.Start(ctx, wire.ProcessStartParams{Argv: []string{"true"}},
		wire.Stdio{Out: &out}); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a start while frozen: %v", err)
	}
	if again, err := client.StateFreeze(ctx); err != nil || again.Upper != res.Upper {
		t.Errorf("a second freeze: %+v, %v", again, err)
	}
	check(t, client.StateThaw(ctx))
	check(t, client.StateThaw(ctx))
	want(t, client, "pgrep -c bash; echo more > /workspace/more; cat /workspace/more", "1\nmore\n")
	check(t, vm.Close())
	if !contains(t, disk, secret) {
		t.Error("the disk did not outlive its sandbox")
	}
	if _, err := d.Disk(); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("the disk of a closed sandbox: %v", err)
	}
}

// contains looks for text in a sparse file.
func contains(t *testing.T, f *os.File, text string) bool {
	t.Helper()
	const block = 4096 // text is at the beginning of a file, and so of a block
	buf := make([]byte, 256*block)
	for off := int64(0); ; {
		data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return false
		}
		check(t, err)
		n, err := f.ReadAt(buf, data/block*block)
		if err != nil && err != io.EOF {
			t.Fatal(err)
		}
		if bytes.Contains(buf[:n], []byte(text)) {
			return true
		}
		off = data/block*block + int64(len(buf))
	}
}

func testHome(t *testing.T, s substrate.Substrate, c Config) {
	if c.MakeHome == nil {
		t.Skip("this substrate has no home disks")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	m := c.Machine
	m.Home = filepath.Join(t.TempDir(), "home")
	check(t, c.MakeHome(ctx, m.Home, 64<<20))
	if err := c.MakeHome(ctx, m.Home, 64<<20); err == nil {
		t.Error("a home disk was made over another")
	}
	for _, layers := range [][]string{nil, Layers(t, 2), nil} {
		m.Layers = layers
		vm, client := Clone(t, s, m, &c.Network)
		want(t, client, "echo again >> "+HomePath+"/file; ls -A "+HomePath, "file\n")
		_, err := client.StateFreeze(ctx)
		check(t, err)
		check(t, vm.Close())
	}
	vm, client := Clone(t, s, m, &c.Network)
	want(t, client, "grep -c again "+HomePath+"/file; head -c 100000000 /dev/zero > "+HomePath+
		"/big 2>/dev/null || echo full; rm "+HomePath+"/big", "3\nfull\n")
	_ = vm.Close() // without a freeze: the journal must suffice
	_, client = Clone(t, s, m, &c.Network)
	want(t, client, "grep -c again "+HomePath+"/file", "3\n")
	m.Home = filepath.Join(t.TempDir(), "none")
	if vm, err := s.Restore(ctx, m); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("a home disk that is not there: %v", err)
		if err == nil {
			_ = vm.Close()
		}
	}
}
