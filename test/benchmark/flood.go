package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"quorate.dev/test/measure"
)

// floodVariable is set in the process that floods a server: this program, with the lowest priority, so that the CPU
// time of the flood delays neither the server nor the measured clients.
const floodVariable = "QUORATE_BENCHMARK_FLOOD"

// floodParallel is the number of concurrent lists, far more than a server with few processors can execute.
const floodParallel = 64

var floodPaths = []string{"/api/v1/pods", "/api/v1/configmaps"}

// floodResults counts the lists of a flood.
type floodResults struct {
	Lists    int64 `json:"lists"`
	Rejected int64 `json:"rejected"` // rejected with status 429
	Failed   int64 `json:"failed"`
}

// flood is the process that floods a server.
type flood struct{ *self }

func startFlood(ctx context.Context, config *rest.Config) (*flood, error) {
	target, err := json.Marshal(floodTarget{Host: config.Host, CAFile: config.CAFile, CAData: config.CAData})
	if err != nil {
		return nil, err
	}
	process, err := startSelf(ctx, floodVariable+"="+string(target), "GOMAXPROCS=1")
	return &flood{process}, err
}

// stop ends the flood and returns its results.
func (f *flood) stop() (results floodResults, err error) {
	err = f.input.Close()
	err = errors.Join(err, json.NewDecoder(f.output).Decode(&results))
	return results, errors.Join(err, f.process.Wait())
}

type floodTarget struct {
	Host   string
	CAFile string
	CAData []byte
}

// runFlood lists everything without pauses until standard input ends. It retries rejected lists immediately.
func runFlood(text string) error {
	const lowest = 19
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, lowest); err != nil {
		return fmt.Errorf("lower the priority: %w", err)
	}
	var target floodTarget
	if err := json.Unmarshal([]byte(text), &target); err != nil {
		return err
	}
	tls := rest.TLSClientConfig{CAFile: target.CAFile, CAData: target.CAData}
	c, err := newClient(&rest.Config{Host: target.Host, TLSClientConfig: tls})
	if err != nil {
		return err
	}
	c.token = tokenOf(floodUser)
	ctx := untilInputEnds(context.Background())
	var lists, rejected, failed atomic.Int64
	var listing sync.WaitGroup
	for worker := range floodParallel {
		listing.Go(func() {
			for i := worker; ctx.Err() == nil; i++ {
				switch _, _, err := c.do(ctx, read(floodPaths[i%len(floodPaths)], asJSON)(0)); {
				case err == nil:
					lists.Add(1)
				case ctx.Err() != nil:
				case errors.Is(err, errTooMany):
					rejected.Add(1)
				default:
					failed.Add(1)
					_ = measure.Pause(ctx, 10*time.Millisecond)
				}
			}
		})
	}
	listing.Wait()
	return json.NewEncoder(os.Stdout).Encode(floodResults{lists.Load(), rejected.Load(), failed.Load()})
}

// errTooMany is the error of a request that was rejected with status 429.
var errTooMany = errors.New(http.StatusText(http.StatusTooManyRequests))
