package measure

import (
	"os"
	"testing"
	"time"
)

func TestParseStatus(t *testing.T) {
	status := "Name:\tVmRSS:\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n"
	for figure, want := range map[string]int64{"VmRSS": 1 << 20, "VmHWM": 2 << 20} {
		if got, err := parseStatus(status, figure); err != nil || got != want {
			t.Errorf("%s: got %d, %v", figure, got, err)
		}
	}
	if _, err := parseStatus(status, "VmSwap"); err == nil {
		t.Error("no error for a figure that is not there")
	}
}

func TestOwnProcess(t *testing.T) {
	pids := []int{os.Getpid()}
	before, err := CPU(pids)
	if err != nil || before <= 0 {
		t.Fatalf("cpu %v, %v", before, err)
	}
	for after := before; after <= before; { // this loop uses CPU time itself
		if after, err = CPU(pids); err != nil {
			t.Fatal(err)
		}
	}
	once, err := Memory(pids, "VmHWM")
	if err != nil || once < 1<<20 {
		t.Errorf("memory %d, %v", once, err)
	}
	twice, err := Memory(append(pids, pids...), "VmHWM")
	if err != nil || twice < 2*once {
		t.Errorf("memory of two processes %d, of one %d, %v", twice, once, err)
	}
}

func TestQuantile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	tests := []struct {
		sorted []time.Duration
		q      float64
		want   time.Duration
	}{
		{nil, 0.5, 0}, {hundred[:1], 0.99, 1}, {hundred[:2], 0.5, 1}, {hundred[:3], 0.5, 2},
		{hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0, 1},
	}
	for _, test := range tests {
		if got := Quantile(test.sorted, test.q); got != test.want {
			t.Errorf("quantile %v of %d values: got %d, want %d", test.q, len(test.sorted), got, test.want)
		}
	}
}
