// Go's side of benches/compare: reads a command per line, and answers each with a line of JSON.
// Go has no timer with a worker: the threads that run goroutines also run the timers.
package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// As in workloads/threads.rs.
const (
	batch      = 256
	batches    = 16
	probePause = 2 * time.Millisecond
	probeDelay = 20 * time.Millisecond
)

// As in random.rs.
type random uint64

func (r *random) below(n uint64) uint64 {
	*r += 0x9E3779B97F4A7C15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return (z ^ z>>31) >> 33 % n
}

// The operations of a caller, with the timers that it has started before.
func operation(name string) func(delay time.Duration) {
	var window [64]*time.Timer
	next := 0
	switch name {
	case "schedule-many":
		return func(delay time.Duration) { time.AfterFunc(delay, task) }
	case "schedule-cancel":
		return func(delay time.Duration) { time.AfterFunc(delay, task).Stop() }
	case "mixed":
		return func(delay time.Duration) {
			next = (next + 1) % len(window)
			if old := window[next]; old != nil {
				old.Stop()
			}
			window[next] = time.AfterFunc(delay, task)
		}
	}
	return nil
}

var ran int64

func task() { atomic.AddInt64(&ran, 1) }

// In cache lines of its own.
type count struct {
	value int64
	_     [120]byte
}

func run(name string, keys map[string]uint64) string {
	if operation(name) == nil {
		return `{"unsupported":"it has no such operation"}`
	}
	threads, length := int(keys["threads"]), time.Duration(keys["millis"])*time.Millisecond
	seed := random(keys["seed"])
	most := int64(math.MaxInt64)
	if limit, found := keys["most"]; found {
		most = int64(limit)
	}
	if keys["warm"] == 1 {
		timers := make([]*time.Timer, keys["count"])
		for i := range timers {
			timers[i] = time.AfterFunc(time.Hour, task)
		}
		for _, timer := range timers {
			timer.Stop()
		}
	}
	counts, over := make([]count, threads), int32(0)
	total := func() (sum int64) {
		for i := range counts {
			sum += atomic.LoadInt64(&counts[i].value)
		}
		return
	}
	cpu, begin := processCPU(), time.Now()
	var callers sync.WaitGroup
	for i := 0; i < threads; i++ {
		delays := make([]time.Duration, batches*batch)
		for j := range delays {
			delays[j] = time.Duration(30_000_000+seed.below(60_000_000)) * time.Microsecond
		}
		callers.Add(1)
		go func(done *int64) {
			defer callers.Done()
			call := operation(name)
			for at := 0; atomic.LoadInt32(&over) == 0; at = (at + batch) % len(delays) {
				for _, delay := range delays[at : at+batch] {
					call(delay)
				}
				if atomic.AddInt64(done, batch) > most {
					atomic.StoreInt32(&over, 1)
				}
			}
		}(&counts[i].value)
	}
	from, first := begin, int64(0)
	var probes sync.WaitGroup
	var lock sync.Mutex
	var late []time.Duration
	for time.Since(begin) < length && atomic.LoadInt32(&over) == 0 {
		if first == 0 && time.Since(begin) >= length/6 {
			from, first = time.Now(), total()
		}
		probes.Add(1)
		due := time.Now().Add(probeDelay)
		time.AfterFunc(probeDelay, func() {
			now := time.Now()
			lock.Lock()
			late = append(late, now.Sub(due))
			lock.Unlock()
			probes.Done()
		})
		time.Sleep(probePause)
	}
	rate := float64(total()-first) / time.Since(from).Seconds() / 1e6
	atomic.StoreInt32(&over, 1)
	callers.Wait()
	probes.Wait()
	used := float64(processCPU()-cpu) / float64(total())
	sort.Slice(late, func(i, j int) bool { return late[i] < late[j] })
	at := func(share float64) float64 { return late[int(share*float64(len(late)-1))].Seconds() * 1e3 }
	return fmt.Sprintf(`{"mops":%f,"cpu_ns":%f,"late_p50":%f,"late_p99":%f}`, rate, used, at(0.5), at(0.99))
}

// In nanoseconds.
func processCPU() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func main() {
	version := strings.TrimPrefix(runtime.Version(), "go")
	fmt.Printf(`{"ready":true,"name":"Go","version":"%s"}`+"\n", version)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		keys := map[string]uint64{}
		for _, word := range words[1:] {
			if name, value, found := strings.Cut(word, "="); found {
				keys[name], _ = strconv.ParseUint(value, 10, 64)
			}
		}
		fmt.Println(run(words[0], keys))
	}
}
