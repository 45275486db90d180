package plugins

import (
	"errors"
	"io"
	"net/http"
	"reflect"
	"unsafe"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/kubernetes/plugin/pkg/admission/imagepolicy"

	"quorate.dev/apiserver/transport"
)

var errImagePolicy = errors.New("the client of ImagePolicyWebhook is not where it was in k8s.io/kubernetes")

// registerImagePolicy registers upstream's plugin ImagePolicyWebhook with a client that limits the webhook's responses.
func registerImagePolicy(plugins *admission.Plugins) {
	plugins.Register(imagepolicy.PluginName, func(config io.Reader) (admission.Interface, error) {
		plugin, err := imagepolicy.NewImagePolicyWebhook(config)
		if err != nil {
			return nil, err
		}
		client, err := imagePolicyClient(plugin)
		if err != nil {
			return nil, err
		}
		next := client.Transport
		if next == nil {
			next = http.DefaultTransport
		}
		client.Transport = transport.Reviews(next)
		return plugin, nil
	})
}

// imagePolicyClient returns the client of the webhook from a private field of the plugin, because the plugin has no
// option for its client or transport.
func imagePolicyClient(plugin *imagepolicy.Plugin) (*http.Client, error) {
	field := reflect.ValueOf(plugin).Elem().FieldByName("webhook")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*webhook.GenericWebhook]() {
		return nil, errImagePolicy
	}
	//nolint:gosec // the type of the field is checked
	generic := *(**webhook.GenericWebhook)(unsafe.Pointer(field.UnsafeAddr()))
	if generic.RestClient == nil || generic.RestClient.Client == nil {
		return nil, errImagePolicy
	}
	return generic.RestClient.Client, nil
}
