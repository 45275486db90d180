package plugin

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/plugin/overview"
	"quorate.dev/plugin/render"
	"quorate.dev/plugin/replica"
)

// statusOptions are the flags of `kubectl quorate status`.
type statusOptions struct {
	format        string
	allNamespaces bool
	metrics       bool
}

func (t *tool) statusCommand() *cobra.Command {
	var o statusOptions
	command := &cobra.Command{
		Use: "status [CLUSTER]", Short: "Print the state of a cluster on one screen, and what to do next",
		Long: "Print the state of a cluster on one screen, and what to do next. The name is optional if the namespace has " +
			"one\ncluster; with several, prints a line for each. Exits with 2 if a cluster needs attention.",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: t.completeClusters,
		RunE: func(command *cobra.Command, args []string) error {
			if err := t.connect(); err != nil {
				return err
			}
			return t.explain(command.Context(), t.status(command.Context(), args, o))
		},
	}
	outputFlag(command, &o.format)
	command.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false,
		"Print a line for each cluster in all namespaces")
	command.Flags().BoolVar(&o.metrics, "metrics", true,
		"Read revisions from the metrics of each API server, through a command in its pod")
	return command
}

func (t *tool) status(ctx context.Context, args []string, o statusOptions) error {
	keys, err := t.keys(ctx, args, o.allNamespaces)
	if err != nil {
		return err
	}
	if len(keys) == 1 && !o.allNamespaces {
		overview, err := t.overview(ctx, keys[0], o.metrics, 0)
		if err != nil {
			return err
		}
		if err := t.printStatus(o.format, overview); err != nil {
			return err
		}
		return attention(overview)
	}
	all := []*overview.Overview{}
	for _, key := range keys {
		one, err := t.overview(ctx, key, false, 0)
		if err != nil {
			return err
		}
		all = append(all, one)
	}
	if o.format != "" {
		err = t.print(o.format, all)
	} else {
		err = render.List(t.out, all, t.now())
	}
	if err != nil {
		return err
	}
	return attention(all...)
}

func (t *tool) printStatus(format string, o *overview.Overview) error {
	if format != "" {
		return t.print(format, o)
	}
	return render.Status(t.out, o, t.now())
}

// attention returns an error with the exit code ExitNegative if a cluster needs attention.
func attention(all ...*overview.Overview) error {
	for _, o := range all {
		if o.Health != overview.Healthy && o.Health != overview.Hibernated {
			return negative("cluster %s is %s", o.Name, o.Health)
		}
	}
	return nil
}

// keys returns the keys of the cluster that the arguments name, or of all clusters in the namespace or in all
// namespaces.
func (t *tool) keys(ctx context.Context, args []string, allNamespaces bool) ([]client.ObjectKey, error) {
	if len(args) > 0 {
		key, err := t.cluster(ctx, args)
		return []client.ObjectKey{key}, err
	}
	var options []client.ListOption
	if !allNamespaces {
		options = append(options, client.InNamespace(t.namespace))
	}
	var list v1alpha1.ApiServerClusterList
	if err := t.client.List(ctx, &list, options...); err != nil {
		return nil, err
	}
	if len(list.Items) == 0 && !allNamespaces {
		_, err := t.cluster(ctx, nil)
		return nil, err
	}
	var keys []client.ObjectKey
	for i := range list.Items {
		keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
	}
	slices.SortFunc(keys, func(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) })
	return keys, nil
}

// overview reads the state of a cluster. If metrics is set, it also reads the metrics of the API servers, and unless
// interval is zero it measures rates over that time.
func (t *tool) overview(
	ctx context.Context, key client.ObjectKey, metrics bool, interval time.Duration,
) (*overview.Overview, error) {
	in, err := overview.Collect(ctx, t.client, key, t.now())
	if err != nil {
		return nil, err
	}
	if !metrics || len(in.Pods) == 0 {
		return overview.Build(in), nil
	}
	sampler, err := replica.NewSampler(ctx, t.config, key.Namespace, key.Name)
	if err != nil {
		in.Notes = append(in.Notes, err.Error())
		return overview.Build(in), nil
	}
	in.Sample(ctx, sampler)
	if interval > 0 {
		in.Earlier = in.Samples
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(interval):
		}
		in.Notes = nil
		in.Sample(ctx, sampler)
	}
	return overview.Build(in), nil
}

func (t *tool) topCommand() *cobra.Command {
	var format string
	var interval time.Duration
	command := &cobra.Command{
		Use: "top [CLUSTER]", Short: "Print the requests, CPU, memory and database size of each API server",
		Long: "Print the requests per second, CPU, memory and database size of each API server. Reads its metrics with\n" +
			"the administrator's kubeconfig, through a command in its pod.",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: t.completeClusters,
	}
	outputFlag(command, &format)
	command.Flags().DurationVar(&interval, "interval", 2*time.Second, "Duration over which rates are measured")
	command.RunE = t.runFor(func(ctx context.Context, key client.ObjectKey) error {
		o, err := t.overview(ctx, key, true, max(interval, 100*time.Millisecond))
		if err != nil {
			return err
		}
		return t.printTop(format, o)
	})
	return command
}

func (t *tool) printTop(format string, o *overview.Overview) error {
	if format != "" {
		if err := t.print(format, o.Replicas); err != nil {
			return err
		}
	} else if err := render.Top(t.out, o); err != nil {
		return err
	}
	for _, note := range o.Notes {
		t.note("%s", note)
	}
	for _, r := range o.Replicas {
		if r.Usage != nil {
			return nil
		}
	}
	return negative("no metrics of %s could be read", o.Name)
}
