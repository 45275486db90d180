package plugins

import (
	"fmt"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
)

// Check returns an error if a plugin does not accept its configuration in a file. The plugins are not used. Files that the
// file names must exist: without one, upstream's loader ends the process.
func Check(selection Selection, file string) error {
	names, err := Enabled(selection)
	if err != nil || file == "" {
		return err
	}
	scheme, err := configScheme()
	if err != nil {
		return err
	}
	configs, err := admission.ReadAdmissionConfiguration(names, file, scheme)
	if err != nil {
		return fmt.Errorf("failed to read plugin config: %w", err)
	}
	client, err := kubernetes.NewForConfig(&rest.Config{}) // is not used
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	factories := upstream()
	for _, name := range names {
		config, err := configs.ConfigFor(name)
		if err != nil {
			return err
		}
		if config == nil {
			continue
		}
		made := &creation{client: client}
		if _, err := factories.InitPlugin(name, config, made); err != nil && !made.accepted {
			return err
		}
	}
	return nil
}

// creation records that a plugin was created from its configuration. What the plugin needs besides is not provided, so
// that InitPlugin then fails, except for PodSecurity, which validates its configuration last.
type creation struct {
	client   kubernetes.Interface
	accepted bool
}

// Initialize implements admission.PluginInitializer.
func (c *creation) Initialize(plugin admission.Interface) {
	if _, ok := plugin.(*podsecurity.Plugin); !ok {
		c.accepted = true
		return
	}
	initializer.New(c.client, nil, informers.NewSharedInformerFactory(c.client, 0), nil, utilfeature.DefaultFeatureGate,
		compatibility.DefaultBuildEffectiveVersion(), nil, nil).Initialize(plugin)
}
