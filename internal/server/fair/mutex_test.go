package fair

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestMutexNames: holders of names are together, one of each name; who holds everything is alone, and
// is not passed by those that come after it.
func TestMutexNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Mutex
		var all sync.WaitGroup
		var order []string
		var mu sync.Mutex
		note := func(what string) {
			mu.Lock()
			order = append(order, what)
			mu.Unlock()
		}
		a, b := m.LockNames("t", "a"), m.LockNames("u", "b") // do not wait
		all.Go(func() { m.Lock("t"); note("all"); m.Unlock() })
		synctest.Wait()
		all.Go(func() { defer m.LockNames("t", "c")(); note("c") })
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("%v did not wait", order)
		}
		a()
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("%v did not wait for both", order)
		}
		b()
		all.Wait()
		if fmt.Sprint(order) != "[all c]" {
			t.Errorf("the order is %v", order)
		}
		a = m.LockNames("t", "a", "b")
		all.Go(func() { defer m.LockNames("t", "b")(); note("b") })
		synctest.Wait()
		if len(order) != 2 {
			t.Errorf("the name has two holders: %v", order)
		}
		a()
		all.Wait()
	})
}

// TestMutexNamesExclude: whatever comes, no name has two holders, everything has none beside it, and
// all get the lock.
func TestMutexNamesExclude(t *testing.T) {
	var m Mutex
	var all sync.WaitGroup
	var held [8]atomic.Int64
	var everything, now atomic.Int64
	for i := range 16 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for range 500 {
				tenant := fmt.Sprint(r.IntN(3))
				if r.IntN(20) == 0 {
					m.Lock(tenant)
					if everything.Add(1) != 1 || now.Load() != 0 {
						t.Error("not alone")
					}
					everything.Add(-1)
					m.Unlock()
					continue
				}
				n := r.IntN(len(held) - 1)
				unlock := m.LockNames(tenant, fmt.Sprint(n), fmt.Sprint(n+1))
				now.Add(1)
				if held[n].Add(1) != 1 || held[n+1].Add(1) != 1 || everything.Load() != 0 {
					t.Error("a name has two holders")
				}
				held[n].Add(-1)
				held[n+1].Add(-1)
				now.Add(-1)
				unlock()
			}
		})
	}
	all.Wait()
	if m.alone || m.count != 0 || len(m.names) != 0 || m.queue.Len() != 0 {
		t.Error("the lock is not free in the end")
	}
}
