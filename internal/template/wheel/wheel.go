// Package wheel reads the programs in wheels (PEP 427): the files that an installer would put beside
// the interpreter. Nothing of a wheel is run or installed, and its other files are not read. A wheel
// is untrusted.
package wheel

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"turnstone.dev/turnstone/internal/lazyregexp"
)

// Bounds of a wheel, in bytes unless named otherwise.
const (
	MaxSize      = 256 << 20 // of the file
	maxDirectory = 4 << 20   // that may be read before the first program
	maxPrograms  = 32        // number of programs
	maxContent   = 128 << 20 // of all programs
)

// ErrInvalid is the error of a wheel that is damaged, exceeds a bound, or has no usable programs.
var ErrInvalid = errors.New("not a wheel with programs")

// A Name is a wheel's file name, in its parts.
type Name struct {
	Project string // as in the file's name, in which "_" replaces "-" and "."
	Version string
}

// A Program is a file of a wheel that belongs into a folder of PATH.
type Program struct {
	Name    string // without a folder
	Content []byte
}

var (
	nameRule = lazyregexp.New(`^([A-Za-z0-9](?:[A-Za-z0-9_.]*[A-Za-z0-9])?)-([A-Za-z0-9.!+_]+)` +
		`(?:-[0-9][A-Za-z0-9_.]*)?-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+-([a-z0-9_.]+)\.whl$`)
	programRule = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}$`)
)

// ParseName reads the name of a wheel for Linux with glibc on x86-64, such as
// uv-0.13.9-py3-none-manylinux2014_x86_64.whl. Other platforms are errors: their programs do not
// run in a sandbox, or are scripts that an installer has to complete.
func ParseName(file string) (Name, error) {
	m := nameRule.FindStringSubmatch(file)
	if m == nil || len(file) > 300 {
		return Name{}, fmt.Errorf("%.100q is not the name of a wheel", file)
	}
	for _, platform := range strings.Split(m[3], ".") {
		if strings.HasPrefix(platform, "manylinux") && strings.HasSuffix(platform, "_x86_64") {
			return Name{Project: m[1], Version: m[2]}, nil
		}
	}
	return Name{}, fmt.Errorf("%.100q is not a wheel for manylinux on x86_64", file)
}

// budget is a reader that fails when more than left bytes are read through it. archive/zip reads a
// directory to its end, whatever number of entries the archive claims to have.
type budget struct {
	r    io.ReaderAt
	left int64
}

var errBudget = errors.New("the archive's directory is too large")

func (b *budget) ReadAt(p []byte, off int64) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errBudget
	}
	return b.r.ReadAt(p, off)
}

// Programs returns the programs of the wheel called name, sorted by their names. r has size bytes.
// Errors match ErrInvalid, unless r failed.
func Programs(r io.ReaderAt, size int64, name Name) ([]Program, error) {
	if size > MaxSize {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrInvalid, int64(MaxSize))
	}
	in := &budget{r: r, left: maxDirectory}
	archive, err := zip.NewReader(in, size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	in.left = 1 << 62 // the bounds below hold from here on
	folder := name.Project + "-" + name.Version + ".data/scripts/"
	var all []Program
	total := int64(0)
	for _, f := range archive.File {
		program, inside := strings.CutPrefix(f.Name, folder)
		if !inside || program == "" {
			continue
		}
		if len(all) == maxPrograms {
			return nil, fmt.Errorf("%w: more than %d programs", ErrInvalid, maxPrograms)
		}
		content, err := read(f, program, maxContent-total)
		if err != nil {
			return nil, fmt.Errorf("%w: program %.100q: %w", ErrInvalid, program, err)
		}
		total += int64(len(content))
		all = append(all, Program{Name: program, Content: content})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: the folder %s is missing or empty", ErrInvalid, folder)
	}
	slices.SortFunc(all, func(a, b Program) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(all); i++ {
		if all[i].Name == all[i-1].Name {
			return nil, fmt.Errorf("%w: program %q is a duplicate", ErrInvalid, all[i].Name)
		}
	}
	return all, nil
}

// read returns the content of the program, of at most most bytes. archive/zip checks its CRC-32.
func read(f *zip.File, program string, most int64) ([]byte, error) {
	if !programRule.MatchString(program) {
		return nil, errors.New("the name is not plain")
	}
	if !f.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	if f.UncompressedSize64 > uint64(most) {
		return nil, fmt.Errorf("the programs have more than %d bytes", maxContent)
	}
	in, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var b bytes.Buffer
	// An honest size spares copies; a dishonest one reserves nothing.
	if f.UncompressedSize64/1032 <= f.CompressedSize64 { // DEFLATE's highest ratio
		b.Grow(int(min(f.UncompressedSize64, f.CompressedSize64*8)) + bytes.MinRead)
	}
	if _, err := b.ReadFrom(io.LimitReader(in, most+1)); err != nil {
		return nil, err
	}
	content := b.Bytes()
	switch {
	case int64(len(content)) > most:
		return nil, fmt.Errorf("the programs have more than %d bytes", maxContent)
	case bytes.HasPrefix(content, []byte("\x7fELF")), bytes.HasPrefix(content, []byte("#!/")):
		return content, nil
	default: // such as "#!python", which an installer replaces with its interpreter
		return nil, errors.New("is neither machine code nor a script that names its interpreter")
	}
}
