package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"turnstone.dev/turnstone/internal/driver"
)

// bareGoal is the maximum ratio of a restore to the bare program under KVM.
const bareGoal = 1.2

// underKVM compares the drivers that run guests under KVM with their bare programs, on a host whose
// KVM runs no stock kernel, with a kernel for tests.
func (b *bench) underKVM(ctx context.Context) error {
	if b.kernel == "" {
		return nil
	}
	if p, err := b.product(ctx, driver.QEMU); err == nil &&
		strings.Contains(p.driver.Isolation(), "(KVM)") {
		return nil // the table of all substrates has these rows
	}
	before, had := os.LookupEnv("TURN_KERNEL")
	if err := os.Setenv("TURN_KERNEL", b.kernel); err != nil {
		return err
	}
	accel := b.accel
	b.accel = "kvm"
	defer func() {
		b.accel = accel
		if _ = os.Unsetenv("TURN_KERNEL"); had {
			_ = os.Setenv("TURN_KERNEL", before)
		}
	}()
	var columns []*column
	var absent []string
	for _, name := range []string{driver.QEMU, driver.Firecracker} {
		p, err := b.product(ctx, name)
		if err == nil && !strings.Contains(p.driver.Isolation(), "(KVM") {
			err = errors.New("KVM runs no guest")
		}
		if err != nil {
			absent = append(absent, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		columns = append(columns, &column{title: name, what: p.driver.Isolation(), start: p.start,
			restore: p.restore, fork: p.fork,
			command: p.command, memory: p.memory}, b.bareColumn(name))
	}
	return b.fill(ctx, columns, func() { b.printUnderKVM(columns, absent) })
}

// bareColumn returns the column of the bare program of the substrate called name, without the
// driver.
func (b *bench) bareColumn(name string) *column {
	fork := b.inner(name, "fork")
	if name == driver.QEMU { // QEMU writes no memory here: the driver reads the process's memory
		fork = nil
	}
	return &column{title: "bare " + name, restore: b.inner(name, "floor"), fork: fork,
		command: b.inner(name, "command"), start: b.whole(name, "floor"),
		memory: func(ctx context.Context) (m processMemory, err error) {
			out, err := output(b.floor(ctx, name, "held"))
			if err == nil {
				_, err = fmt.Sscan(out, &m.private, &m.pss)
			}
			return m, err
		},
	}
}

func (b *bench) printUnderKVM(columns []*column, absent []string) {
	fmt.Printf("## Under KVM, with a kernel made for tests\n\n"+
		"Ring 0 of these guests is emulated here: a guest's own work takes a multiple of its "+
		"time elsewhere, and only ratios mean something. %d starts, restores and first commands, "+
		"%d forks; load of the machine at the end: %s.\n\n", b.runs, b.divide.Of(forkRuns), load())
	for ; len(columns) > 1; columns = columns[2:] {
		ours, bare := columns[0], columns[1]
		fmt.Printf("| %s, %s | driver | bare program | ratio |\n|---|---|---|---|\n",
			ours.title, ours.what)
		for _, row := range []struct{ row, name string }{
			{rowStart, "start: `turn run` of `true`; the bare program until `true` has run; the " +
				"whole process, p50"},
			{rowRestore, fmt.Sprintf("restore, configure and `true`, p50 (goal: %.1f)", bareGoal)},
			{rowCommand, "first command of a clone, p50"},
			{rowFork, "fork: `turn sandbox fork`; write down and load; until `true` has run, p50"},
		} {
			d, floor := ours.took[row.row], bare.took[row.row]
			if len(d) > 0 && len(floor) == 0 {
				fmt.Printf("| %s | %s | – | – |\n", row.name, ms(quantile(d, 50)))
			} else if len(d) > 0 {
				fmt.Printf("| %s | %s | %s | %.2f |\n", row.name, ms(quantile(d, 50)),
					ms(quantile(floor, 50)), ratio(d, floor, 50))
			}
		}
		if d, floor := ours.held, bare.held; d.pss > 0 && floor.pss > 0 {
			fmt.Printf("| memory of a clone, private / Pss | %s / %s | %s / %s | %.2f / %.2f |\n",
				mib(d.private), mib(d.pss), mib(floor.private), mib(floor.pss),
				float64(d.private)/float64(floor.private), float64(d.pss)/float64(floor.pss))
		}
		fmt.Println()
	}
	printAbsent(absent)
}
