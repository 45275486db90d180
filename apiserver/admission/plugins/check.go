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

// Check returns an error if an enabled plugin rejects its configuration in the file. It creates the plugins and
// discards them. Files that the configuration names must exist: without one, upstream's loader exits the process.
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
	client, err := kubernetes.NewForConfig(&rest.Config{}) // never sends requests
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

// creation is a PluginInitializer that records when a plugin has been created, which means that it accepted its
// configuration. It provides no other dependencies, so that the validation in InitPlugin fails afterwards. PodSecurity
// is the exception: it validates its configuration at the end of that validation, and creation provides all of its
// dependencies.
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
