// Package extension implements the command `quorate extension`, which moves API groups between a cluster and its
// extension servers.
package extension

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"quorate.dev/extension/move"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/terminal"
)

// Run runs the command `quorate extension`.
func Run(ctx context.Context, args []string) error {
	command := newCommand(terminal.Stdout())
	command.SetArgs(args)
	return command.ExecuteContext(ctx)
}

// Command returns the command `quorate extension` for the generated reference of flags.
func Command() *cobra.Command { return newCommand(io.Discard) }

func newCommand(out io.Writer) *cobra.Command {
	command := &cobra.Command{
		Use:          "extension",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "quorate extension"},
		Short:        "Manage API groups that an extension server serves",
		SilenceUsage: true, SilenceErrors: true,
	}
	command.SetOut(out)
	command.CompletionOptions.DisableDefaultCmd = true
	command.AddCommand(moveCommand(out))
	return command
}

// flags are the flags of `quorate extension move`.
type flags struct {
	to                  string
	kubeconfig          string
	context             string
	extensionKubeconfig string
	cluster             string
	apiServices         string
	namespace           string
	settle, timeout     time.Duration
	dryRun, abort       bool
}

func moveCommand(out io.Writer) *cobra.Command {
	f := &flags{}
	command := &cobra.Command{
		Use:   "move GROUP --to extension|host",
		Short: "Move the objects of an API group into an extension server, or back to the host",
		Long: "Move the objects of an API group from the CustomResourceDefinitions of a cluster, the host, into an\n" +
			"extension server that serves the group to it, or back. An interrupted move continues when the command runs again.",
		Example: "  quorate extension move reports.example.com --to extension --cluster default/reports --dry-run\n" +
			"  quorate extension move reports.example.com --to extension --cluster default/reports\n" +
			"  quorate extension move reports.example.com --to host --cluster default/reports",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error { return f.run(command.Context(), args[0], out) },
	}
	set := command.Flags()
	set.StringVar(&f.to, "to", "", "Destination of the objects: extension or host")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "Kubeconfig of the host (default: as kubectl)")
	set.StringVar(&f.context, "context", "", "Context in the kubeconfig of the host")
	set.StringVar(&f.extensionKubeconfig, "extension-kubeconfig", "",
		"Kubeconfig of the extension server, of a member of system:masters (default: the Secret NAME-admin-kubeconfig of "+
			"--cluster)")
	set.StringVar(&f.cluster, "cluster", "",
		"NAMESPACE/NAME of the ApiServerCluster in mode Extension; its operator registers the group")
	set.StringVar(&f.apiServices, "api-services", "",
		"File with the APIServices of the extension server, if no operator manages them")
	set.StringVar(&f.namespace, "state-namespace", metav1.NamespaceSystem,
		"Namespace of the host for the ConfigMap with the progress")
	set.DurationVar(&f.settle, "settle", 10*time.Second,
		"Time that a change needs to reach all API servers of the host and its clients; requests fail for a small multiple "+
			"of it")
	set.DurationVar(&f.timeout, "timeout", 5*time.Minute, "Time limit of each wait; run the command again to continue")
	set.BoolVar(&f.dryRun, "dry-run", false, "Print what would be done and write nothing")
	set.BoolVar(&f.abort, "abort", false, "Undo a move that has begun")
	return command
}

func (f *flags) run(ctx context.Context, group string, out io.Writer) error {
	options, err := f.options(ctx, group)
	if err != nil {
		return err
	}
	options.Report = func(line string) { fmt.Fprintln(out, line) }
	mover, err := move.New(options)
	if err != nil {
		return err
	}
	switch {
	case f.abort:
		return mover.Abort(ctx)
	case f.dryRun:
		plan, err := mover.Plan(ctx)
		if err != nil {
			return err
		}
		return printPlan(out, plan)
	}
	if err := mover.Run(ctx); err != nil {
		if problems := (*move.ProblemsError)(nil); errors.As(err, &problems) {
			return err
		}
		return fmt.Errorf("%w\nRun the same command again to continue", err)
	}
	return nil
}

func (f *flags) options(ctx context.Context, group string) (move.Options, error) {
	options := move.Options{
		Group: group, Namespace: f.namespace, Settle: f.settle, Timeout: f.timeout, Clock: clock.RealClock{},
	}
	switch f.to {
	case "extension":
		options.Direction = move.ToExtension
	case "host":
		options.Direction = move.ToHost
	default:
		if !f.abort {
			return options, fmt.Errorf("--to %q must be extension or host", f.to)
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	var err error
	options.Host, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		rules, &clientcmd.ConfigOverrides{CurrentContext: f.context}).ClientConfig()
	if err != nil {
		return options, fmt.Errorf("read the kubeconfig of the host: %w", err)
	}
	if f.cluster != "" {
		err = f.fromCluster(ctx, &options)
	}
	if err == nil && f.extensionKubeconfig != "" {
		options.Extension, err = clientcmd.BuildConfigFromFlags("", f.extensionKubeconfig)
	}
	if err == nil && f.apiServices != "" {
		options.Registration.Specs, err = readAPIServices(f.apiServices, group)
	}
	if err == nil && options.Extension == nil {
		err = errors.New("--extension-kubeconfig or --cluster is required")
	}
	return options, err
}

// fromCluster reads the ApiServerCluster of --cluster. Its operator registers the versions in its spec. Its
// administrator's kubeconfig is used unless --extension-kubeconfig is set.
func (f *flags) fromCluster(ctx context.Context, options *move.Options) error {
	namespace, name, ok := strings.Cut(f.cluster, "/")
	if !ok {
		return fmt.Errorf("--cluster %q must be NAMESPACE/NAME", f.cluster)
	}
	client, err := dynamic.NewForConfig(options.Host)
	if err != nil {
		return err
	}
	resource := v1alpha1.GroupVersion.WithResource("apiserverclusters")
	found, err := client.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read ApiServerCluster %s: %w", f.cluster, err)
	}
	cluster := &v1alpha1.ApiServerCluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, cluster); err != nil {
		return fmt.Errorf("decode ApiServerCluster %s: %w", f.cluster, err)
	}
	if options.Direction == move.ToExtension && !cluster.IsExtension() {
		return fmt.Errorf("the mode of ApiServerCluster %s is not Extension", f.cluster)
	}
	options.Registration.Labels = maps.Clone(map[string]string(desired.ExtensionSelector(cluster)))
	for _, group := range cluster.Spec.Extension.Groups {
		if group.Name == options.Group {
			options.Registration.Versions = group.Versions
		}
	}
	if f.extensionKubeconfig != "" {
		return nil
	}
	secrets := client.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(namespace)
	secret, err := secrets.Get(ctx, name+"-admin-kubeconfig", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the kubeconfig of ApiServerCluster %s: %w", f.cluster, err)
	}
	options.Extension, err = kubeconfigIn(secret)
	return err
}

func kubeconfigIn(object *unstructured.Unstructured) (*rest.Config, error) {
	secret := &corev1.Secret{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, secret); err != nil {
		return nil, fmt.Errorf("decode Secret %s: %w", object.GetName(), err)
	}
	return clientcmd.RESTConfigFromKubeConfig(secret.Data[desired.KubeconfigKey])
}

// readAPIServices reads the APIServices of a group from a file, and returns their specs by version.
func readAPIServices(file, group string) (map[string]map[string]any, error) {
	content, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }()
	specs := map[string]map[string]any{}
	decoder := yaml.NewYAMLOrJSONDecoder(content, 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return specs, nil
		}
		if err != nil {
			return nil, fmt.Errorf("decode %s: %w", file, err)
		}
		if len(object.Object) == 0 {
			continue
		}
		spec, _ := object.Object["spec"].(map[string]any)
		version, _ := spec["version"].(string)
		if object.GetKind() != "APIService" || spec["group"] != group || spec["service"] == nil {
			return nil, fmt.Errorf("%s: %s %s is not an APIService of %s with a Service", file,
				object.GetKind(), object.GetName(), group)
		}
		specs[version] = spec
	}
}

func printPlan(out io.Writer, plan *move.Plan) error {
	rows := [][]string{{"DEFINITION", "VERSIONS", "OBJECTS", "WITH FINALIZERS", "BEING DELETED"}}
	for _, kind := range plan.Kinds {
		rows = append(rows, []string{
			kind.Definition, strings.Join(kind.Versions, ","), fmt.Sprint(kind.Objects),
			fmt.Sprint(kind.Finalizers), fmt.Sprint(kind.Deleting),
		})
	}
	const columnGap = 3
	if err := terminal.Table(out, rows, columnGap); err != nil {
		return err
	}
	printList(out, "Steps:", plan.Steps)
	printList(out, "Not kept:", plan.Lost)
	if len(plan.Problems) > 0 {
		return &move.ProblemsError{Problems: slices.Clone(plan.Problems)}
	}
	return nil
}

func printList(out io.Writer, title string, lines []string) {
	fmt.Fprintf(out, "\n%s\n", title)
	for _, line := range lines {
		fmt.Fprintf(out, "  %s\n", line)
	}
}
