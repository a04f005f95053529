package main

import (
	"bufio"
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A tag names a way in which make test-again runs a test again. A test function has its tags in its comment
// (//testrun:user kvm), a script of testscript in one of its first lines (# testrun: user kvm).
//
//	user   as an ordinary user
//	kvm    under KVM, with the kernel for tests
//	qemu   on QEMU without KVM
//	full   in a full run, in its full form: of tests that are parts of their own, and so are in no other sweep
const (
	goTag     = "//testrun:"
	scriptTag = "# testrun: "
)

var tags = []string{"user", "kvm", "qemu", "full"}

// tagged returns the tests with a tag by package, and the scripts of TestMachineScript of cmd/turn with it.
func (g graph) tagged(root, tag string) (tests map[string][]string, scripts []string, err error) {
	tests = map[string][]string{}
	for name, p := range g {
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			f, err := parse(p.Dir, file)
			if err != nil {
				return nil, nil, err
			}
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Doc == nil {
					continue
				}
				for _, c := range fn.Doc.List {
					has, err := hasTag(c.Text, goTag, tag)
					if err != nil {
						return nil, nil, fmt.Errorf("%s/%s: %s: %w", name, file, fn.Name.Name, err)
					}
					if has {
						tests[name] = append(tests[name], fn.Name.Name)
					}
				}
			}
		}
		slices.Sort(tests[name])
	}
	paths, err := filepath.Glob(filepath.Join(root, "cmd/turn/testdata/machine/*.txtar"))
	if err != nil {
		return nil, nil, err
	}
	for _, path := range paths {
		has, err := scriptHasTag(path, tag)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		if has {
			scripts = append(scripts, strings.TrimSuffix(filepath.Base(path), ".txtar"))
		}
	}
	return tests, scripts, nil
}

// hasTag reports whether a line has a tag.
func hasTag(line, prefix, tag string) (bool, error) {
	list, ok := strings.CutPrefix(line, prefix)
	if !ok || strings.HasPrefix(list, "race ") {
		return false, nil
	}
	all := strings.Fields(list)
	for _, t := range all {
		if !slices.Contains(tags, t) {
			return false, fmt.Errorf("%q is no tag of tests: these are %s", t, strings.Join(tags, ", "))
		}
	}
	return slices.Contains(all, tag), nil
}

// scriptHasTag reads the comment at the beginning of a script.
func scriptHasTag(path, tag string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	for in := bufio.NewScanner(f); in.Scan() && strings.HasPrefix(in.Text(), "#"); {
		if has, err := hasTag(in.Text(), scriptTag, tag); has || err != nil {
			return has, err
		}
	}
	return false, nil
}
