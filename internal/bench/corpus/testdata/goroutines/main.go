// Command goroutines prints what differs from run to run in a Go program.
package main

import (
	crand "crypto/rand"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"time"
)

func main() {
	map[string]func(){"maps": maps, "random": random, "clock": clock, "channels": channels,
		"system": system, "select": selects, "race": race}[os.Args[1]]()
}

func maps() {
	m := map[string]int{}
	for i := range 20 {
		m[fmt.Sprintf("key-%d", i)] = i
	}
	for range 3 {
		for k := range m {
			fmt.Print(k, " ")
		}
		fmt.Println()
	}
	fmt.Println(maphash.String(maphash.MakeSeed(), "text"))
}

func random() {
	b := make([]byte, 16)
	_, _ = crand.Read(b)
	fmt.Printf("%x %d %v %s\n", b, rand.Uint64(), rand.Perm(10), crand.Text())
}

func clock() {
	began := time.Now()
	fmt.Println(began)
	time.Sleep(50 * time.Millisecond)
	t := time.NewTicker(10 * time.Millisecond)
	for range 5 {
		fmt.Println(<-t.C)
	}
	fmt.Println(time.Since(began) > 100*time.Millisecond)
}

// channels prints results in the order of their channel: each worker waits for its number.
func channels() {
	results := make(chan string)
	for i := range 8 {
		go func() {
			time.Sleep(time.Duration(10*(8-i)) * time.Millisecond)
			results <- fmt.Sprintf("worker %d at %s", i, time.Now().Format(time.RFC3339Nano))
		}()
	}
	for range 8 {
		fmt.Println(<-results)
	}
}

func system() {
	host, err := os.Hostname()
	fmt.Println(host, err, os.Getpid(), os.Getppid(), runtime.NumCPU(), runtime.GOMAXPROCS(0))
	dir, err := os.MkdirTemp("", "go-")
	fmt.Println(dir, err)
	x := new(int)
	fmt.Printf("%p\n", x)
}

// selects lets select pick among channels that are all ready.
func selects() {
	a, b, c := make(chan int, 100), make(chan int, 100), make(chan int, 100)
	for i := range 100 {
		a <- i
		b <- i
		c <- i
	}
	var picked []byte
	for range 60 {
		select {
		case <-a:
			picked = append(picked, 'a')
		case <-b:
			picked = append(picked, 'b')
		case <-c:
			picked = append(picked, 'c')
		}
	}
	fmt.Println(string(picked))
}

// race lets goroutines take numbers as the scheduler runs them.
func race() {
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for range 40 {
				for range rand.IntN(2000) {
					runtime.Gosched()
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	fmt.Println(order)
}
