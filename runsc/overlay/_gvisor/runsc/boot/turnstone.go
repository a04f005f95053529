// How many threads the kernel has. This file is added by Turnstone's build.

package boot

import "runtime"

// kernelThreads returns how many threads may run the kernel's own code (GOMAXPROCS) in a
// sandbox of the given number of CPUs. It is at least two, where the host has them: with
// one, the kernel cannot wait for a program while a program waits for the kernel, systrap
// never takes its fast path, and each system call costs two switches of the host's tasks.
func kernelThreads(cpus int) int {
	return max(cpus, min(2, runtime.NumCPU()))
}
