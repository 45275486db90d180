// Command benchmark runs the same work on kube-apiserver with etcd, and on Quorate with its embedded member,
// alternately on this machine, and prints the cost of the work on both.
//
// Each work is measured in rounds (--rounds), and each round runs on all servers before the next one begins, so that
// the load of other processes affects all servers equally. A work with a fixed number of requests divides them among
// its rounds, and another work its time. Each round of a work with watchers executes a share of the updates, first
// without watchers and then with them. Servers with encrypted Secrets restart in each round. The writes with webhooks
// and policies for other objects have seven rounds in any case, and send all their requests in each. Memory, the time
// until a server is ready, CustomResourceDefinitions and overload are measured once, because a repetition needs new
// servers.
//
// The CPU time of a round is the CPU time of all processes of a server while the round runs, divided by the number of
// requests. The CPU time in a row is the median of the rounds, the fraction is the median of the fractions in the
// rounds, and the spread is the smallest and the largest of these fractions. Nothing is subtracted, so background work
// of the server is included if it runs during a round, but a median ignores work that is done in few rounds. Only the
// cost of a watch event is a difference: to the same updates without watchers.
//
// Requests come from one client over one HTTP/2 connection with TLS and a client certificate. Watchers have as many
// connections as the row says. Compression is disabled for both servers (Accept-Encoding: identity), except for clients
// of discovery and OpenAPI while CustomResourceDefinitions are created. Reads have no resource version, so both servers
// must return the newest state. Data is written to the same file system, with fsync.
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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"quorate.dev/test/measure"
)

// timeLimit ends a run that hangs. On an idle machine, a run takes about ten minutes, a quarter of the limit.
const timeLimit = 40 * time.Minute

type options struct {
	only      string
	profiles  string
	works     string
	json      bool
	check     bool
	record    string
	from      string
	behind    string
	history   string
	date      string
	commit    string
	plot      string
	rounds    int
	keep      bool
	peerFlags []string
	ourFlags  []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	if target := os.Getenv(floodVariable); target != "" {
		if err := runFlood(target); err != nil {
			fmt.Fprintln(os.Stderr, "Error:", err)
			os.Exit(1)
		}
		return
	}
	if options := os.Getenv(bareVariable); options != "" {
		if err := runBare(ctx, options); err != nil {
			fmt.Fprintln(os.Stderr, "Error:", err)
			os.Exit(1)
		}
		return
	}
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
	if o.plot != "" {
		return writePlots(o.plot)
	}
	recorded, err := o.recorded()
	if err != nil {
		return err
	}
	report, err := o.report(ctx)
	if o.json {
		err = errors.Join(err, json.NewEncoder(os.Stdout).Encode(report))
	} else {
		fmt.Print(report.markdown())
	}
	if err != nil {
		return err
	}
	if err := o.store(ctx, report); err != nil {
		return err
	}
	return errors.Join(o.checkPromises(report), o.checkBehind(report, recorded))
}

// store writes the report to the files of --record and --history.
func (o *options) store(ctx context.Context, report Report) error {
	if o.record != "" {
		if err := report.record(o.record); err != nil {
			return err
		}
	}
	if o.history == "" {
		return nil
	}
	e := entry{Date: o.date, Commit: o.commit, Rows: report.historyRows()}
	if e.Date == "" {
		e.Date = time.Now().UTC().Format(time.DateOnly)
	}
	if e.Commit == "" {
		e.Commit = currentCommit(ctx)
	}
	return appendHistory(o.history, e)
}

// checkPromises returns an error if --check is set and the report breaks a promise.
func (o *options) checkPromises(report Report) error {
	if broken := report.brokenPromises(); o.check && len(broken) > 0 {
		return fmt.Errorf("%d promises are broken:\n%s", len(broken), strings.Join(broken, "\n"))
	}
	return nil
}

// report returns the results of earlier runs, or runs the servers. If a step fails, the results until then are returned
// with the error.
func (o *options) report(ctx context.Context) (Report, error) {
	if o.from != "" {
		return load(o.from)
	}
	report, err := o.run(ctx)
	for _, results := range []*Results{report.Peer, report.Ours, report.Floor} {
		if results != nil {
			results.addWatchMean()
		}
	}
	return report, err
}

func parse(arguments []string) (*options, error) {
	o := &options{}
	f := pflag.NewFlagSet("benchmark", pflag.ContinueOnError)
	f.StringVar(&o.only, "only", "", "peer or ours; default: both, in turns")
	f.StringVar(&o.profiles, "profile", "", "directory for a CPU profile of our server during each work")
	f.StringVar(&o.works, "work", "", "do only the works whose names contain this (objects are created in any case); "+
		"definitions, encryption or overload: only these")
	f.BoolVar(&o.json, "json", false, "print JSON; times are nanoseconds, sizes bytes")
	f.BoolVar(&o.check, "check", false,
		"fail if a promise is broken: the column \"promised\" of the tables, and no median latency above the peer's")
	f.StringVar(&o.record, "record", "", "file with recorded results, in which the measured rows are replaced")
	f.StringVar(&o.from, "from", "", "file with recorded results, which are printed and checked; nothing is measured")
	f.StringVar(&o.behind, "behind", "", fmt.Sprintf("file with recorded results; fail if a row is more than %.0f %% "+
		"behind: our CPU time as a fraction of the peer's is so much larger than recorded", 100*behindLimit))
	f.StringVar(&o.history, "history", "", "file to which the fractions of all measured rows are appended")
	f.StringVar(&o.date, "date", "", "date of the results in --history; default: today")
	f.StringVar(&o.commit, "commit", "", "commit of the results in --history; default: the commit that is checked out")
	f.StringVar(&o.plot, "plot", "", "directory with history.json, in which plots of it are written; nothing is measured")
	f.IntVar(&o.rounds, "rounds", defaultRounds, "number of rounds of each work, which run on all servers in turns; "+
		"1 by default with --profile")
	f.BoolVar(&o.keep, "keep", false, "keep data and logs")
	f.StringArrayVar(&o.peerFlags, "peer-flag", nil, "a further flag for kube-apiserver; may be repeated")
	f.StringArrayVar(&o.ourFlags, "our-flag", nil, "a further flag for our server; may be repeated")
	if err := f.Parse(arguments); err != nil {
		return nil, err
	}
	if o.only != "" && o.only != "peer" && o.only != "ours" {
		return nil, fmt.Errorf("--only=%s: peer or ours", o.only)
	}
	if o.rounds < 1 {
		return nil, fmt.Errorf("--rounds=%d: at least 1", o.rounds)
	}
	if o.profiles != "" && !f.Changed("rounds") {
		o.rounds = 1 // recording a profile takes two seconds, longer than a round
	}
	return o, nil
}

func (o *options) run(ctx context.Context) (Report, error) {
	if runtime.GOOS != "linux" {
		return Report{}, errors.New("processor time and memory are read from /proc, which only Linux has")
	}
	directory, err := os.MkdirTemp("", "quorate-benchmark-")
	if err != nil {
		return Report{}, err
	}
	if o.keep {
		progress("data and logs: %s", directory)
	} else {
		defer os.RemoveAll(directory)
	}
	var report Report
	p := plan{works: o.works, rounds: o.rounds, progress: progress}
	if o.works == overloadOnly {
		err = o.runOverload(ctx, filepath.Join(directory, overloadOnly), p, &report)
		return report, err
	}
	if o.works == encryptionOnly {
		return report, o.runEncryptions(ctx, filepath.Join(directory, encryptionOnly), p, &report)
	}
	if o.works != definitionsOnly {
		err = o.runStandard(ctx, filepath.Join(directory, "standard"), p.steps(), &report)
	}
	if err == nil && (o.works == "" || o.works == definitionsOnly) {
		err = o.runSteps(ctx, filepath.Join(directory, definitionsOnly), definitionSteps(progress), &report)
	}
	if err == nil && o.works != definitionsOnly {
		err = o.runAudits(ctx, filepath.Join(directory, "audited"), p, &report)
	}
	if err == nil && o.works != definitionsOnly {
		err = o.runSharded(ctx, filepath.Join(directory, "sharded"), p, &report)
	}
	return report, err
}

// runAudits measures servers that audit.
func (o *options) runAudits(ctx context.Context, directory string, p plan, report *Report) error {
	if len(filter(audits(), p)) == 0 {
		return nil
	}
	theirs, err := auditFlags(filepath.Join(directory, "peer"))
	if err != nil {
		return err
	}
	ours, err := auditFlags(filepath.Join(directory, "ours"))
	if err != nil {
		return err
	}
	return o.with(theirs, ours).runSteps(ctx, directory, p.auditSteps(), report)
}

// with returns the options with additional flags for each server.
func (o *options) with(theirs, ours []string) *options {
	with := *o
	with.peerFlags, with.ourFlags = append(slices.Clone(o.peerFlags), theirs...), append(slices.Clone(o.ourFlags), ours...)
	return &with
}

// definitionsOnly is the value of --work that measures only CustomResourceDefinitions.
const definitionsOnly = "definitions"

// runStandard executes the steps on new servers and on the floor, unless only the peer is measured.
func (o *options) runStandard(ctx context.Context, directory string, steps []step, report *Report) error {
	subjects, err := o.start(ctx, directory)
	if err == nil && o.only != "peer" {
		progress("starting the floor")
		bottom, problem := startFloor(ctx, filepath.Join(directory, bare), subjects[len(subjects)-1].results)
		if problem == nil {
			subjects = append(subjects, bottom)
		}
		err = problem
	}
	return execute(ctx, steps, subjects, report, err)
}

// runSteps executes steps on new servers and adds their results to the report.
func (o *options) runSteps(ctx context.Context, directory string, steps []step, report *Report) error {
	subjects, err := o.start(ctx, directory)
	return execute(ctx, steps, subjects, report, err)
}

// execute executes steps unless a server has failed to start with err, and stops the servers.
func execute(ctx context.Context, steps []step, subjects []*subject, report *Report, err error) error {
	for _, s := range subjects {
		s.results = report.add(s.Name, s.results)
	}
	if err == nil {
		err = run(ctx, steps, subjects)
	}
	for _, s := range subjects {
		err = errors.Join(err, s.stop())
	}
	return err
}

// start starts the selected servers. If a server fails to start, start returns the servers that are running together
// with the error, so that the caller can stop them.
func (o *options) start(ctx context.Context, directory string) ([]*subject, error) {
	var subjects []*subject
	identity, err := startIdentity(directory)
	if err != nil {
		return nil, fmt.Errorf("OpenID provider: %w", err)
	}
	if o.only != "ours" {
		progress("starting kube-apiserver and etcd")
		flags := append(identity.flags, o.peerFlags...)
		subject, err := startSubject(ctx, measure.StartPeer, filepath.Join(directory, "peer"), flags)
		if err != nil {
			return nil, fmt.Errorf("peer: %w", err)
		}
		subjects = append(subjects, subject)
		if subject.tokenClient, err = identity.client(ctx, subject.Admin); err != nil {
			return subjects, fmt.Errorf("peer: %w", err)
		}
	}
	if o.only == "peer" {
		return subjects, nil
	}
	progress("starting quorate")
	if o.profiles != "" {
		if err := os.MkdirAll(o.profiles, 0o755); err != nil {
			return subjects, err
		}
	}
	flags := append(identity.flags, o.ourFlags...)
	subject, err := startSubject(ctx, measure.StartOurs, filepath.Join(directory, "ours"), flags)
	if err != nil {
		return subjects, fmt.Errorf("ours: %w", err)
	}
	subject.profiles = o.profiles
	subjects = append(subjects, subject)
	if subject.tokenClient, err = identity.client(ctx, subject.Admin); err != nil {
		return subjects, fmt.Errorf("ours: %w", err)
	}
	return subjects, nil
}

func progress(format string, arguments ...any) { fmt.Fprintf(os.Stderr, format+"\n", arguments...) }
