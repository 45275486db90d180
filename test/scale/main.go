// Command scale measures kube-apiserver with etcd and Quorate with its embedded member, one after the other, with a
// cluster of hollow nodes.
//
// Each node has a TLS connection with its own certificate, on which it renews its lease, reports its status, writes the
// states of its pods, and holds five watches: its Node, its pods, all Services, EndpointSlices and CSIDrivers. The
// objects of the cluster are created first. Then all clients connect at the same time. In the next phase, pods and
// EndpointSlices change at a constant rate while the clients stay connected. Storms, such as a restart of the server,
// follow. Finally, kube-controller-manager and kube-scheduler can run.
//
// Every change is counted for each watch that must receive it, so that missing events are noticed. The delay of an
// event is the time from the sending of a change, which an annotation of the object states, to the receipt of the
// event.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"quorate.dev/test/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, arguments []string) error {
	o, err := parse(arguments)
	if err != nil {
		return err
	}
	report, err := o.run(ctx)
	report.Options = strings.Join(arguments, " ")
	if o.json {
		err = errors.Join(err, json.NewEncoder(os.Stdout).Encode(report))
	} else {
		fmt.Print(report.markdown())
	}
	if err == nil && o.record != "" {
		err = report.record(o.record)
	}
	if violations := report.violations(); err == nil && o.check && violations > 0 {
		return fmt.Errorf("%d objectives are missed", violations)
	}
	return err
}

// violations returns the number of objectives that were missed.
func (r Report) violations() (count int) {
	for _, result := range []*Result{r.Peer, r.Ours} {
		if result != nil {
			count += len(result.Violations)
		}
	}
	return count
}

// run measures the selected servers. If a phase fails, the results until then are returned with the error.
func (o *options) run(ctx context.Context) (report Report, err error) {
	if runtime.GOOS != "linux" {
		return report, errors.New("processor time and memory are read from /proc, which only Linux has")
	}
	directory, err := os.MkdirTemp("", "quorate-scale-")
	if err != nil {
		return report, err
	}
	if o.keep {
		progress("data and logs: %s", directory)
	} else {
		defer os.RemoveAll(directory)
	}
	if o.only != "ours" {
		report.Peer, err = o.measure(ctx, measure.StartPeer, filepath.Join(directory, "peer"), o.peerFlags)
		if err != nil {
			return report, err
		}
	}
	if o.only != "peer" {
		report.Ours, err = o.measure(ctx, measure.StartOurs, filepath.Join(directory, "ours"), o.ourFlags)
	}
	return report, err
}

// starter starts a server: measure.StartPeer or measure.StartOurs.
type starter func(context.Context, measure.Options) (*measure.Server, error)

// measure starts a server, simulates a cluster on it, and stops it.
func (o *options) measure(ctx context.Context, start starter, directory string, flags []string) (*Result, error) {
	server, release, err := o.startServer(ctx, start, directory, flags)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(o, server, directory, progress)
	if err != nil {
		return nil, errors.Join(err, server.Stop(), release())
	}
	c.result.add("start", "time until ready", server.Ready.Seconds(), seconds)
	err = c.simulate(ctx)
	c.result.Problems = c.stats.Problems()
	return c.result, errors.Join(err, server.Stop(), release())
}

func progress(format string, arguments ...any) { fmt.Fprintf(os.Stderr, format+"\n", arguments...) }
