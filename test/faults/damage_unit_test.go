package faults

import (
	"testing"

	"quorate.dev/apiserver/config"
)

// TestDamage: a loss of acknowledged writes is explained only by damage of more than a minority at the same time, and
// data that no nemesis has damaged is not damaged.
func TestDamage(t *testing.T) {
	replicas := []*replica{{index: 0}, {index: 1}, {index: 2}}
	for name, test := range map[string]struct {
		happen                func(d *damage)
		explained, violations int
	}{
		"a loss without damage":        {func(*damage) {}, 0, 1},
		"a loss with a damaged member": {func(d *damage) { d.begin(replicas[1]) }, 0, 1},
		"one after another": {func(d *damage) {
			d.begin(replicas[1])
			d.end(replicas[1])
			d.begin(replicas[2])
		}, 0, 1},
		"two at the same time": {func(d *damage) {
			d.begin(replicas[1])
			d.begin(replicas[2])
			d.end(replicas[2])
		}, 1, 0},
		"damaged data": {func(d *damage) {
			d.begin(replicas[1])
			d.claim(replicas[1], config.DamagedDataExitCode, "")
		}, 0, 1},
		"data that is not damaged": {func(d *damage) { d.claim(replicas[1], config.DamagedDataExitCode, "") }, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			d := &damage{}
			test.happen(d)
			d.refuse(replicas[0], "the leader lacks writes")
			explained, violations := d.check(len(replicas))
			if len(explained) != test.explained || len(violations) != test.violations {
				t.Errorf("explained %v, violations %v", explained, violations)
			}
		})
	}
}
