package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// kubeconfigOptions are the flags of `kubectl quorate kubeconfig`.
type kubeconfigOptions struct {
	format   string
	resource string // name of an ApiServerKubeconfig
	write    bool
	use      bool
	name     string
	endpoint string
}

func (t *tool) kubeconfigCommand() *cobra.Command {
	var o kubeconfigOptions
	command := &cobra.Command{
		Use: "kubeconfig [CLUSTER]", Short: "Print the kubeconfig of a cluster, or merge it into your own",
		Long: "Print the administrator's kubeconfig of a cluster, or that of an ApiServerKubeconfig. With --write, merge " +
			"it into\nthe kubeconfig that kubectl uses, as context NAMESPACE-CLUSTER.",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: t.completeClusters,
	}
	outputFlag(command, &o.format)
	f := command.Flags()
	f.StringVar(&o.resource, "from", "", "Name of an ApiServerKubeconfig; default: the administrator's kubeconfig")
	f.BoolVar(&o.write, "write", false,
		"Merge into the file in --kubeconfig or $KUBECONFIG, or ~/.kube/config, instead of printing")
	f.BoolVar(&o.use, "use", false, "With --write, make the context the current one")
	f.StringVar(&o.name, "name", "", "Name of the cluster, user and context; default: NAMESPACE-CLUSTER")
	f.StringVar(&o.endpoint, "endpoint", "",
		"URL of the API servers, such as that of a forwarded port; certificates are still verified for the name in the "+
			"kubeconfig; default: the URL in the kubeconfig")
	checkFlags(command, func() error {
		if o.use && !o.write {
			return errors.New("--use needs --write")
		}
		return nil
	})
	command.RunE = t.runFor(func(ctx context.Context, key client.ObjectKey) error { return t.kubeconfig(ctx, key, o) })
	return command
}

func (t *tool) kubeconfig(ctx context.Context, key client.ObjectKey, o kubeconfigOptions) error {
	content, err := t.kubeconfigContent(ctx, key, o.resource)
	if err != nil {
		return err
	}
	if o.name == "" {
		o.name = key.Namespace + "-" + key.Name
		if o.resource != "" {
			o.name += "-" + o.resource
		}
	}
	kubeconfig, err := renamed(content, o.name, o.endpoint)
	if err != nil {
		return err
	}
	if o.write {
		return t.writeKubeconfig(kubeconfig, o)
	}
	if o.format == "json" {
		converted, err := clientcmd.Write(*kubeconfig)
		if err != nil {
			return err
		}
		return t.printYAMLAsJSON(converted)
	}
	converted, err := clientcmd.Write(*kubeconfig)
	if err == nil {
		_, err = t.out.Write(converted)
	}
	return err
}

// kubeconfigContent reads the kubeconfig of the administrator, or of the ApiServerKubeconfig resource.
func (t *tool) kubeconfigContent(ctx context.Context, key client.ObjectKey, resource string) ([]byte, error) {
	cluster := &v1alpha1.ApiServerCluster{}
	if err := t.client.Get(ctx, key, cluster); err != nil {
		return nil, err
	}
	name := desired.SecretName(cluster, "admin-kubeconfig")
	if resource != "" {
		access := &v1alpha1.ApiServerKubeconfig{}
		if err := t.client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: resource}, access); err != nil {
			return nil, err
		}
		if access.Spec.ClusterRef.Name != key.Name {
			return nil, fmt.Errorf("ApiServerKubeconfig %s belongs to cluster %s", resource, access.Spec.ClusterRef.Name)
		}
		name = desired.KubeconfigSecretName(access)
	}
	secret := &corev1.Secret{}
	if err := t.client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, secret); err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	if len(secret.Data[desired.KubeconfigKey]) == 0 {
		return nil, fmt.Errorf("secret %s has no kubeconfig", name)
	}
	return secret.Data[desired.KubeconfigKey], nil
}

// renamed returns a kubeconfig whose only cluster, user and context have the given name, so that it can be merged with
// other kubeconfigs. Unless endpoint is empty, it is the URL of the server.
func renamed(content []byte, name, endpoint string) (*clientcmdapi.Config, error) {
	kubeconfig, err := clientcmd.Load(content)
	if err != nil {
		return nil, fmt.Errorf("parse the kubeconfig: %w", err)
	}
	current := kubeconfig.Contexts[kubeconfig.CurrentContext]
	if current == nil || kubeconfig.Clusters[current.Cluster] == nil || kubeconfig.AuthInfos[current.AuthInfo] == nil {
		return nil, errors.New("the kubeconfig has no current context")
	}
	cluster := kubeconfig.Clusters[current.Cluster]
	if endpoint != "" {
		server, err := url.Parse(cluster.Server)
		if err != nil {
			return nil, fmt.Errorf("parse the kubeconfig: %w", err)
		}
		if cluster.TLSServerName == "" {
			cluster.TLSServerName = server.Hostname()
		}
		cluster.Server = endpoint
	}
	out := clientcmdapi.NewConfig()
	out.Clusters[name], out.AuthInfos[name] = cluster, kubeconfig.AuthInfos[current.AuthInfo]
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	out.CurrentContext = name
	return out, nil
}

// writeKubeconfig merges a kubeconfig into the kubeconfig file that kubectl uses. Entries with the same names are
// replaced.
func (t *tool) writeKubeconfig(kubeconfig *clientcmdapi.Config, o kubeconfigOptions) error {
	options := clientcmd.NewDefaultPathOptions()
	options.LoadingRules.ExplicitPath = t.rules.ExplicitPath
	merged, err := options.GetStartingConfig()
	if err != nil {
		return err
	}
	before := merged.CurrentContext
	merged.Clusters[o.name], merged.AuthInfos[o.name] = kubeconfig.Clusters[o.name], kubeconfig.AuthInfos[o.name]
	merged.Contexts[o.name] = kubeconfig.Contexts[o.name]
	if o.use || before == "" {
		merged.CurrentContext = o.name
	}
	if err := clientcmd.ModifyConfig(options, *merged, true); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	t.note("Wrote context %s to %s", o.name, options.GetDefaultFilename())
	if merged.CurrentContext != o.name {
		t.note("Use it with --context=%s, or for all commands with: kubectl config use-context %s", o.name, o.name)
	}
	return nil
}
