package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// below returns the processes that the process pid has started, and those that they have.
func below(pid int) (all []int) {
	parents := map[int][]int{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		text, _ := os.ReadFile(filepath.Join(dir, "stat"))
		// the name of the program may have any bytes
		_, rest, _ := strings.Cut(string(text[max(0, strings.LastIndexByte(string(text), ')')):]), ") ")
		var state string
		var parent int
		if _, err := fmt.Sscan(rest, &state, &parent); err == nil {
			child, _ := strconv.Atoi(filepath.Base(dir))
			parents[parent] = append(parents[parent], child)
		}
	}
	for todo := parents[pid]; len(todo) > 0; {
		all = append(all, todo[0])
		todo = append(todo[1:], parents[todo[0]]...)
	}
	return all
}

// testHanging checks that a pod ends whose sandbox answers nothing any more.
func testHanging(t *testing.T, b *Bed) {
	p := b.pod(t, "hanging")
	id := p.run("main", nil, "sh", "-c", "trap '' TERM; while true; do sleep 1; done")
	p.freeze()
	if _, err := b.Crictl(t.Context(), "", "stop", "--timeout", "1", id); err != nil {
		t.Errorf("stop: %v", err)
	}
	if code := p.await(id); code != 137 {
		t.Errorf("exit code %d", code)
	}
	_, err := b.Crictl(t.Context(), "", "rmp", "-f", p.id)
	check(t, err)
}
