package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/plugin/overview"
	"quorate.dev/terminal"
)

// tool contains the connection to the hosting cluster and the output, which all commands share.
type tool struct {
	streams
	now       func() time.Time
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides

	config    *rest.Config
	client    client.WithWatch
	namespace string
}

// connectionFlags adds the flags of kubectl that select the hosting cluster, the user and the namespace.
func (t *tool) connectionFlags(root *cobra.Command) {
	t.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	f := root.PersistentFlags()
	f.StringVar(&t.rules.ExplicitPath, "kubeconfig", "", "Path of the kubeconfig of the hosting cluster")
	clientcmd.BindOverrideFlags(&t.overrides, f, clientcmd.RecommendedConfigOverrideFlags(""))
	_ = root.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions)
	_ = root.RegisterFlagCompletionFunc("context", t.completeContexts)
}

func (t *tool) connect() error {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(t.rules, &t.overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return fmt.Errorf("load the kubeconfig of the hosting cluster: %w; name one with --kubeconfig or $KUBECONFIG", err)
	}
	if t.namespace, _, err = loader.Namespace(); err != nil {
		return err
	}
	config.UserAgent = "kubectl-quorate"
	config.QPS = -1 // the server limits its clients; a limit here fails before a deadline, and not as a timeout
	config.WarningHandler = rest.NewWarningWriter(t.err, rest.WarningWriterOptions{Deduplicate: true})
	t.config = config
	t.client, err = client.NewWithWatch(config, client.Options{Scheme: overview.Scheme()})
	return err
}

// runFor returns a function that connects, and calls do with the cluster that the arguments name or the only one in the
// namespace.
func (t *tool) runFor(do func(ctx context.Context, key client.ObjectKey) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		if err := t.connect(); err != nil {
			return err
		}
		key, err := t.cluster(command.Context(), args)
		if err != nil {
			return err
		}
		return t.explain(command.Context(), do(command.Context(), key))
	}
}

// cluster returns the key of the cluster that the arguments name, or of the only cluster in the namespace.
func (t *tool) cluster(ctx context.Context, args []string) (client.ObjectKey, error) {
	if len(args) > 0 {
		_, name, found := strings.Cut(args[0], "/") // asc/demo, as kubectl prints names, is accepted, too
		if !found {
			name = args[0]
		}
		return client.ObjectKey{Namespace: t.namespace, Name: name}, nil
	}
	names, err := t.names(ctx)
	switch {
	case err != nil:
		return client.ObjectKey{}, t.explain(ctx, err)
	case len(names) == 0:
		return client.ObjectKey{}, fmt.Errorf("namespace %s has no ApiServerCluster; select another one with --namespace",
			t.namespace)
	case len(names) > 1:
		return client.ObjectKey{}, fmt.Errorf("name one of the ApiServerClusters of namespace %s: %s",
			t.namespace, strings.Join(names, ", "))
	}
	return client.ObjectKey{Namespace: t.namespace, Name: names[0]}, nil
}

// names returns the sorted names of the clusters in the namespace.
func (t *tool) names(ctx context.Context) ([]string, error) {
	var list v1alpha1.ApiServerClusterList
	if err := t.client.List(ctx, &list, client.InNamespace(t.namespace)); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(list.Items))
	for _, c := range list.Items {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names, nil
}

// explain adds a hint for the user to an error of the hosting cluster.
func (t *tool) explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err):
		return fmt.Errorf("%w; the server %s has no Quorate operator: select the hosting cluster with --context, or "+
			"install the operator",
			err, t.config.Host)
	case apierrors.IsNotFound(err) && isAboutOtherKind(err):
		return fmt.Errorf("%w in namespace %s", err, t.namespace)
	case apierrors.IsNotFound(err):
		if names, listErr := t.names(ctx); listErr == nil && len(names) > 0 {
			return fmt.Errorf("%w; namespace %s has %s", err, t.namespace, strings.Join(names, ", "))
		}
		return fmt.Errorf("%w in namespace %s; select another one with --namespace", err, t.namespace)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w; %s does not accept the credentials of the kubeconfig", err, t.config.Host)
	}
	return err
}

// isAboutOtherKind reports whether a NotFound error is about an object other than an ApiServerCluster. Names of
// clusters are no help then.
func isAboutOtherKind(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	resource := status.Status().Details.Kind // API servers store the resource in this field
	return resource != "" && resource != "apiserverclusters"
}

// print writes a value as JSON or YAML. Like kubectl, it writes objects with apiVersion and kind, which clients drop,
// and without managed fields.
func (t *tool) print(format string, value any) error {
	if object, ok := value.(client.Object); ok {
		kind, err := apiutil.GVKForObject(object, overview.Scheme())
		if err != nil {
			return err
		}
		object.GetObjectKind().SetGroupVersionKind(kind)
		object.SetManagedFields(nil)
	}
	if format == "yaml" {
		// YAML cannot represent all control characters, and leaves some that terminals interpret. JSON escapes all, and
		// every YAML parser can read it.
		if content, err := yaml.Marshal(value); err == nil && terminal.Plain(content) {
			_, err = t.out.Write(content)
			return err
		}
	}
	return terminal.PrintJSON(t.out, value, "    ")
}

// outputFlag adds the flag --output and its check.
func outputFlag(command *cobra.Command, format *string) {
	command.Flags().StringVarP(format, "output", "o", "", "Output format: json or yaml; default: text")
	_ = command.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	checkFlags(command, func() error {
		if !slices.Contains([]string{"", "json", "yaml"}, *format) {
			return fmt.Errorf("--output %q must be json or yaml", *format)
		}
		return nil
	})
}

// checkFlags adds a check of the flags, which runs before the command connects.
func checkFlags(command *cobra.Command, check func() error) {
	earlier := command.PreRunE
	command.PreRunE = func(command *cobra.Command, args []string) error {
		if earlier != nil {
			if err := earlier(command, args); err != nil {
				return err
			}
		}
		return check()
	}
}

// completeClusters returns the names of clusters for the completion of an argument.
func (t *tool) completeClusters(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || t.connect() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(command.Context(), 5*time.Second)
	defer cancel()
	names, _ := t.names(ctx)
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (t *tool) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	config, err := t.rules.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, 0, len(config.Contexts))
	for name := range config.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}

// printYAMLAsJSON writes a YAML document as JSON.
func (t *tool) printYAMLAsJSON(content []byte) error {
	var value any
	if err := yaml.Unmarshal(content, &value); err != nil {
		return err
	}
	return t.print("json", value)
}
