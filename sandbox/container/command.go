package container

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Programs are the names under which this binary may be asked for as a container's command.
var Programs = []string{"quorate", "kube-apiserver"}

// Wildcard is the address by which a container listens on all of its own addresses. Processes of the sandbox
// share one network, so it is replaced by the Pod's address.
const Wildcard = "0.0.0.0"

// Command is what to run: argv.
type Command struct {
	Name string
	Args []string
}

// ResolveCommand returns the command line of a container. The image is always this binary: a container without a
// command gives arguments to it, and one with a command must name it.
func ResolveCommand(container *corev1.Container, environment Environment, mounts Mounts, podIP string) (Command, error) {
	command := Command{Name: Programs[0]}
	arguments := container.Args
	if len(container.Command) > 0 {
		command.Name = path.Base(container.Command[0])
		if !slices.Contains(Programs, command.Name) {
			return Command{}, fmt.Errorf("the sandbox runs no other program than %s, not %q", Programs[0], container.Command[0])
		}
		arguments = slices.Concat(container.Command[1:], container.Args)
	}
	for _, argument := range arguments {
		command.Args = append(command.Args, localize(Expand(argument, environment), mounts, podIP))
	}
	return command, nil
}

// Localize puts the machine's paths and the Pod's address into the values of an environment.
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

// replaceWildcard replaces 0.0.0.0 where it stands alone, not as a part of 10.0.0.0 or of the range 0.0.0.0/0.
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
