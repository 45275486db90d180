package faults

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"quorate.dev/test/faults/isolation"
	"quorate.dev/test/faults/memory"
	"quorate.dev/test/faults/network"
	"quorate.dev/test/faults/schedule"
)

// chosenSetting returns what this user permits, as QUORATE_FAULTS_REPLICAS, QUORATE_FAULTS_DISKS=honest and
// QUORATE_FAULTS_NETWORK=proxies restrict it.
func chosenSetting(t *testing.T, seeds int) schedule.Setting {
	t.Helper()
	s := schedule.Setting{
		Replicas: chosenNumber(t, "QUORATE_FAULTS_REPLICAS", 0), Duration: runDuration(t, seeds),
		Lying: os.Getenv("QUORATE_FAULTS_DISKS") != "honest",
	}
	return permitted(t, s)
}

// permitted adds the faults to a setting that this user can cause.
func permitted(t *testing.T, s schedule.Setting) schedule.Setting {
	t.Helper()
	disks, packets := isolation.Mounts(t), network.Usable()
	if disks != nil {
		t.Logf("data directories are folders, without faults of disks, because volumes cannot be mounted: %v", disks)
	}
	if os.Getenv("QUORATE_FAULTS_NETWORK") == "proxies" {
		packets = errors.New("QUORATE_FAULTS_NETWORK=proxies")
	}
	if packets != nil {
		t.Logf("nodes are connected through proxies, without faults of packets: %v", packets)
	}
	pressure := memory.Usable()
	if pressure != nil {
		t.Logf("memory is not limited: %v", pressure)
	}
	s.Network, s.Disks, s.Packets, s.Memory = true, disks == nil, packets == nil, pressure == nil
	return s
}

// chosenDuration is the duration of all runs of `make faults`.
func chosenDuration(t *testing.T) time.Duration {
	t.Helper()
	return durationOf(t, "QUORATE_FAULTS", 0)
}

const (
	shortRun = 10 * time.Second // of the run without options
	longRun  = 45 * time.Second // of a run with a random seed
)

// runDuration is how long the faults of one run last, of a number of chosen seeds.
func runDuration(t *testing.T, seeds int) time.Duration {
	t.Helper()
	standard := shortRun
	if total := chosenDuration(t); total > 0 && seeds > 0 {
		standard = max(shortRun, total/time.Duration(seeds))
	} else if total > 0 {
		standard = longRun
	}
	return durationOf(t, "QUORATE_FAULTS_RUN", standard)
}

func durationOf(t *testing.T, variable string, standard time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s is a duration: %v", variable, err)
	}
	return duration
}

func chosenNumber(t *testing.T, variable string, standard int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s is a number: %v", variable, err)
	}
	return number
}

// chosenSeeds are the seeds of QUORATE_FAULTS_SEEDS.
func chosenSeeds(t *testing.T) (seeds []uint64) {
	t.Helper()
	seeds, err := schedule.Seeds(os.Getenv("QUORATE_FAULTS_SEEDS"))
	if err != nil {
		t.Fatal(err)
	}
	return seeds
}

// chosenSchedule is the schedule in the file of QUORATE_FAULTS_SCHEDULE.
func chosenSchedule(t *testing.T) schedule.Schedule {
	t.Helper()
	file := os.Getenv("QUORATE_FAULTS_SCHEDULE")
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := schedule.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}
