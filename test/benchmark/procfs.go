package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU time in /proc; USER_HZ is 100 on every architecture of Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpu returns the processor time that the processes have used, in user and kernel mode.
func cpu(pids []int) (time.Duration, error) {
	var total time.Duration
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		used, err := parseStat(stat)
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}

// parseStat reads utime and stime, the 14th and 15th field. The 2nd field is the program's name in parentheses and
// may itself contain spaces and parentheses.
func parseStat(stat []byte) (time.Duration, error) {
	end := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[end+1:]))
	if end < 0 || len(fields) < 13 {
		return 0, fmt.Errorf("malformed stat %q", stat)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	kernel, err := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+kernel) * tick, err
}

// memory returns a figure of /proc/PID/status, summed over the processes, in bytes: VmRSS is what is resident now,
// VmHWM the most that ever was.
func memory(pids []int, figure string) (int64, error) {
	var total int64
	for _, pid := range pids {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return 0, err
		}
		size, err := parseStatus(string(status), figure)
		if err != nil {
			return 0, err
		}
		total += size
	}
	return total, nil
}

func parseStatus(status, figure string) (int64, error) {
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == figure+":" && fields[2] == "kB" {
			size, err := strconv.ParseInt(fields[1], 10, 64)
			return size << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in status", figure)
}
