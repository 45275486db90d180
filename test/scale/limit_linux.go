package main

import (
	"errors"
	"fmt"
	"os"

	"quorate.dev/test/faults/memory"
	"quorate.dev/test/measure"
)

// limit makes the API server run in a cgroup with the memory limit of the options, or with GOMEMLIMIT. The returned
// function removes the cgroup.
func (o *options) limit(settings *measure.Options) (release func() error, err error) {
	if o.memoryLimit == 0 {
		return func() error { return nil }, nil
	}
	limit := o.memoryLimit << 20
	group, err := memory.NewGroup(fmt.Sprintf("scale-%d", os.Getpid()))
	if err != nil {
		progress("%v; the limit is in GOMEMLIMIT instead", err)
		settings.Wrapper = []string{"env", fmt.Sprintf("GOMEMLIMIT=%d", limit*9/10)}
		return func() error { return nil }, nil
	}
	if _, err := group.Limit(limit); err != nil {
		return nil, errors.Join(fmt.Errorf("limit the memory of the cgroup: %w", err), group.Close())
	}
	settings.Wrapper = []string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, group.Processes()}
	return group.Close, nil
}
