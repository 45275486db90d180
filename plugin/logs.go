package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/desired"
)

// logOptions are the flags of `kubectl quorate logs`.
type logOptions struct {
	follow   bool
	tail     int64
	since    time.Duration
	operator bool
	replicas bool
	previous bool
}

func (t *tool) logsCommand() *cobra.Command {
	var o logOptions
	command := &cobra.Command{
		Use: "logs [CLUSTER]", Short: "Print the logs of the API servers, and the operator's lines about the cluster",
		Long: "Print the logs of the API servers and the operator's log lines about the cluster, each with the name of its " +
			"pod.\n--operator prints only the operator's lines, --replicas only those of API servers.",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: t.completeClusters,
	}
	f := command.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "Follow the logs")
	f.Int64Var(&o.tail, "tail", 20, "Last lines of each pod to print; -1 prints all")
	f.DurationVar(&o.since, "since", 0, "Print only lines that are newer than this duration; default: no limit")
	f.BoolVar(&o.operator, "operator", false, "Print only the operator's lines about the cluster")
	f.BoolVar(&o.replicas, "replicas", false, "Print only the logs of API servers")
	f.BoolVarP(&o.previous, "previous", "p", false, "Print the logs of the previous, terminated containers")
	command.MarkFlagsMutuallyExclusive("operator", "replicas")
	command.RunE = t.runFor(func(ctx context.Context, key client.ObjectKey) error { return t.logs(ctx, key, o) })
	return command
}

// source is a log to print, and the selection of its lines.
type source struct {
	pod    *corev1.Pod
	accept func(line string) bool
}

func (t *tool) logs(ctx context.Context, key client.ObjectKey, o logOptions) error {
	sources, err := t.sources(ctx, key, o)
	if err != nil {
		return err
	}
	clientset, err := kubernetes.NewForConfig(t.config)
	if err != nil {
		return err
	}
	var (
		out    sync.Mutex
		group  sync.WaitGroup
		errs   = make([]error, len(sources))
		prefix = len(sources) > 1
	)
	for i, s := range sources {
		group.Go(func() {
			errs[i] = t.printLog(ctx, clientset, s, o, func(line string) {
				out.Lock()
				defer out.Unlock()
				if prefix {
					line = "[" + s.pod.Name + "] " + line
				}
				fmt.Fprintln(t.out, line)
			})
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// sources returns the logs that the options select, of the cluster's and the operator's pods.
func (t *tool) sources(ctx context.Context, key client.ObjectKey, o logOptions) ([]source, error) {
	var sources []source
	all := func(string) bool { return true }
	if !o.operator {
		var pods corev1.PodList
		err := t.client.List(ctx, &pods, client.InNamespace(key.Namespace),
			client.MatchingLabels{desired.ClusterLabel: key.Name})
		if err != nil {
			return nil, err
		}
		for i := range pods.Items {
			sources = append(sources, source{&pods.Items[i], all})
		}
	}
	if !o.replicas {
		var pods corev1.PodList
		err := t.client.List(ctx, &pods, client.MatchingLabels{desired.NameLabel: desired.OperatorName})
		switch {
		case err != nil && o.operator:
			return nil, err
		case err != nil:
			t.note("The operator's log is not printed: %v", err)
		case len(pods.Items) == 0 && o.operator:
			return nil, errors.New("the hosting cluster has no pod of the operator; in a sandbox, use `quorate sandbox logs " +
				"operator`")
		}
		for i := range pods.Items {
			accept := func(line string) bool { return mentions(line, key) }
			sources = append(sources, source{&pods.Items[i], accept})
		}
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("cluster %s has no pods", key.Name)
	}
	return sources, nil
}

// mentions reports whether a line of the operator's log, text or JSON, is about a cluster.
func mentions(line string, key client.ObjectKey) bool {
	has := func(field, value string) bool {
		return strings.Contains(line+" ", " "+field+"="+value+" ") ||
			strings.Contains(line, fmt.Sprintf("%q:%q", field, value))
	}
	return has("name", key.Name) && has("namespace", key.Namespace)
}

// printLog prints the accepted lines of a log. It reads the whole log of an operator's pod, because the API server
// would apply the limit of lines before they are filtered.
func (t *tool) printLog(
	ctx context.Context, clientset kubernetes.Interface, s source, o logOptions, line func(string),
) error {
	filtered := s.pod.Labels[desired.NameLabel] == desired.OperatorName
	options := &corev1.PodLogOptions{Follow: o.follow, Previous: o.previous, Container: s.pod.Spec.Containers[0].Name}
	if o.since > 0 {
		options.SinceSeconds = ptr.To(max(1, int64(o.since.Seconds())))
	}
	if o.tail >= 0 && filtered {
		return printFiltered(ctx, clientset, s, *options, o.tail, line)
	}
	if o.tail >= 0 {
		options.TailLines = &o.tail
	}
	stream, err := openLog(ctx, clientset, s, options)
	if err != nil {
		return err
	}
	defer stream.Close()
	return eachLine(stream, func(text string) {
		if s.accept(text) {
			line(text)
		}
	})
}

func openLog(
	ctx context.Context, clientset kubernetes.Interface, s source, options *corev1.PodLogOptions,
) (io.ReadCloser, error) {
	stream, err := clientset.CoreV1().Pods(s.pod.Namespace).GetLogs(s.pod.Name, options).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the log of pod %s: %w", s.pod.Name, err)
	}
	return stream, nil
}

// printFiltered prints the last accepted lines of a log, and then follows the log if the options request it. The
// request that follows the log begins with the second of the last line, so that lines up to the last one are dropped.
func printFiltered(
	ctx context.Context, clientset kubernetes.Interface, s source, options corev1.PodLogOptions,
	tail int64, line func(string),
) error {
	follow := options.Follow
	options.Follow, options.Timestamps = false, true
	stream, err := openLog(ctx, clientset, s, &options)
	if err != nil {
		return err
	}
	var last time.Time
	lines, err := lastLines(stream, func(text string) bool {
		at, text := splitTimestamp(text)
		if !at.IsZero() {
			last = at
		}
		return s.accept(text)
	}, int(tail))
	stream.Close()
	for _, text := range lines {
		_, text = splitTimestamp(text)
		line(text)
	}
	if err != nil || !follow {
		return err
	}
	options.Follow = true
	if !last.IsZero() {
		options.SinceSeconds, options.SinceTime = nil, &metav1.Time{Time: last}
	}
	if stream, err = openLog(ctx, clientset, s, &options); err != nil {
		return err
	}
	defer stream.Close()
	return eachLine(stream, func(text string) {
		if at, text := splitTimestamp(text); at.After(last) && s.accept(text) {
			line(text)
		}
	})
}

// splitTimestamp splits a line into the timestamp that the kubelet has added and the original line.
func splitTimestamp(text string) (time.Time, string) {
	timestamp, rest, _ := strings.Cut(text, " ")
	at, err := time.Parse(time.RFC3339Nano, timestamp)
	if err != nil {
		return time.Time{}, text
	}
	return at, rest
}

func lastLines(log io.Reader, accept func(string) bool, count int) ([]string, error) {
	var lines []string
	err := eachLine(log, func(text string) {
		if accept(text) {
			lines = append(lines, text)
			lines = lines[max(0, len(lines)-count):]
		}
	})
	return lines, err
}

// eachLine calls do with each line of a log. Lines may be longer than a bufio.Scanner allows.
func eachLine(log io.Reader, do func(string)) error {
	reader := bufio.NewReader(log)
	for {
		text, err := reader.ReadString('\n')
		if text != "" {
			do(strings.TrimSuffix(text, "\n"))
		}
		if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
