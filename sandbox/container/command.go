package container

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Programs are the names under which a container's command may call this binary.
var Programs = []string{"quorate", "kube-apiserver"}

// Wildcard is the unspecified address. Because all processes of a sandbox share one network, the Pod's address replaces
// it.
const Wildcard = "0.0.0.0"

// Command is the name and the arguments of a process.
type Command struct {
	Name string
	Args []string
}

// ResolveCommand returns the command line of a container. A sandbox has no images and runs only this binary, so the
// command of a container must be in Programs.
func ResolveCommand(
	container *corev1.Container, environment Environment, mounts Mounts, podIP string,
) (Command, error) {
	command := Command{Name: Programs[0]}
	arguments := container.Args
	if len(container.Command) > 0 {
		command.Name = path.Base(container.Command[0])
		if !slices.Contains(Programs, command.Name) {
			return Command{}, fmt.Errorf("the sandbox runs only %s, not %q", Programs[0], container.Command[0])
		}
		arguments = slices.Concat(container.Command[1:], container.Args)
	}
	for _, argument := range arguments {
		command.Args = append(command.Args, localize(Expand(argument, environment), mounts, podIP))
	}
	return command, nil
}

// Localize returns the environment with values in which folders and the Pod's address replace mount paths and the
// wildcard address.
func (e Environment) Localize(mounts Mounts, podIP string) Environment {
	result := make(Environment, len(e))
	for name, value := range e {
		result[name] = localize(value, mounts, podIP)
	}
	return result
}

func localize(text string, mounts Mounts, podIP string) string {
	return replaceWildcard(mounts.Translate(text), podIP)
}

// replaceWildcard replaces the address 0.0.0.0, but not in 10.0.0.0 or in the range 0.0.0.0/0.
func replaceWildcard(text, podIP string) string {
	var result strings.Builder
	for {
		before, after, found := strings.Cut(text, Wildcard)
		result.WriteString(before)
		if !found {
			return result.String()
		}
		if partOfNumber(before, after) {
			result.WriteString(Wildcard)
		} else {
			result.WriteString(podIP)
		}
		text = after
	}
}

func partOfNumber(before, after string) bool {
	digit := func(c byte) bool { return c >= '0' && c <= '9' || c == '.' }
	return before != "" && digit(before[len(before)-1]) || after != "" && (digit(after[0]) || after[0] == '/')
}
