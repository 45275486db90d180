package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"quorate.dev/test/measure"
	"quorate.dev/test/scale/wire"
)

// cost is the processor time, the time and the memory that the server needed for a phase.
type cost struct {
	cpu, wall      time.Duration // cpu is the user and system time of all processes of the server
	resident, peak int64         // bytes of all processes, after the phase and at most
}

// measured runs a phase, and adds its costs to the result under its name.
func (c *cluster) measured(ctx context.Context, name string, phase func(context.Context) error) (cost, error) {
	c.progress("%s", name)
	c.stats.Restart()
	if err := measure.ResetPeak(c.server.PIDs); err != nil {
		return cost{}, err
	}
	before, err := c.times()
	if err != nil {
		return cost{}, err
	}
	own, err := measure.CPU([]int{os.Getpid()})
	if err != nil {
		return cost{}, err
	}
	begin := time.Now()
	if err := phase(ctx); err != nil {
		return cost{}, fmt.Errorf("%s: %w", name, err)
	}
	used := cost{wall: time.Since(begin)}
	after, err := c.times()
	for pid, total := range after {
		used.cpu += total - before[pid] // a process that was started during the phase began with 0
	}
	resident, peak, memoryErr := c.memory()
	used.resident, used.peak = resident, peak
	c.addCost(name, used)
	return used, errors.Join(err, memoryErr, c.addSimulation(name, own))
}

func (c *cluster) addCost(phase string, used cost) {
	c.result.add(phase, "server CPU", used.cpu.Seconds(), seconds)
	c.result.add(phase, "time", used.wall.Seconds(), seconds)
	c.result.add(phase, "resident afterwards", float64(used.resident), bytesUnit)
	c.result.add(phase, "most resident", float64(used.peak), bytesUnit)
}

// addSimulation adds the cost of this process, which shares the machine with the server, to the result. before is its
// CPU time at the beginning of the phase.
func (c *cluster) addSimulation(phase string, before time.Duration) error {
	own := []int{os.Getpid()}
	after, err := measure.CPU(own)
	if err != nil {
		return err
	}
	resident, err := measure.Memory(own, "VmRSS")
	c.result.add(phase, "CPU of the simulation", (after - before).Seconds(), seconds)
	c.result.add(phase, "resident in the simulation", float64(resident), bytesUnit)
	return err
}

// times returns the CPU time of each process of the server.
func (c *cluster) times() (map[int]time.Duration, error) {
	times := map[int]time.Duration{}
	for _, pid := range c.server.PIDs {
		used, err := measure.CPU([]int{pid})
		if err != nil {
			return nil, err
		}
		times[pid] = used
	}
	return times, nil
}

func (c *cluster) memory() (resident, peak int64, err error) {
	resident, err = measure.Memory(c.server.PIDs, "VmRSS")
	if err != nil {
		return 0, 0, err
	}
	peak, err = measure.Memory(c.server.PIDs, "VmHWM")
	return resident, peak, err
}

// goroutines returns the number of goroutines of the API server, or 0 if it does not respond.
func (c *cluster) goroutines(ctx context.Context) float64 {
	count, err := c.readGoroutines(ctx)
	if err != nil {
		c.stats.Report(fmt.Errorf("read the number of goroutines: %w", err))
	}
	return count
}

// readGoroutines reads the number of goroutines from the metrics of the API server.
func (c *cluster) readGoroutines(ctx context.Context) (float64, error) {
	response, err := c.writer(0).Do(ctx, wire.Request{Method: "GET", Path: "/metrics", Accept: "text/plain"}, 64<<20)
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(response.Body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if value, ok := bytes.CutPrefix(lines.Bytes(), []byte("go_goroutines ")); ok {
			return strconv.ParseFloat(string(value), 64)
		}
	}
	return 0, errors.Join(errors.New("the metrics have no go_goroutines"), lines.Err())
}
