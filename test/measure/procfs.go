package measure

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory returns a figure in /proc/PID/status in bytes, summed over the processes: VmRSS is the memory that is resident
// now, VmHWM the largest value of VmRSS so far.
func Memory(pids []int, figure string) (int64, error) {
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

// ResetPeak sets VmHWM of the processes to VmRSS.
func ResetPeak(pids []int) error {
	for _, pid := range pids {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0o200); err != nil {
			return err
		}
	}
	return nil
}
