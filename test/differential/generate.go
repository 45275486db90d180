package differential

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"quorate.dev/test/upstream"
)

// Resource is an entry of discovery with an example of its objects.
type Resource struct {
	schema.GroupVersionResource
	Kind         string
	Namespaced   bool
	Subresources []string
	Verbs        []string
	Stub         string
}

// Resources returns the resources of a server.
func Resources(ctx context.Context, server *Server) ([]Resource, error) {
	upstream, err := upstream.UpstreamResources(ctx, "${ns}")
	if err != nil {
		return nil, err
	}
	client, err := discovery.NewDiscoveryClientForConfigAndClient(server.config, server.admin)
	if err != nil {
		return nil, err
	}
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		return nil, err
	}
	var resources []Resource
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			plural, subresource, isSubresource := strings.Cut(r.Name, "/")
			if isSubresource {
				owner := slices.IndexFunc(resources, func(o Resource) bool {
					return o.GroupVersionResource == version.WithResource(plural)
				})
				if owner < 0 {
					continue // bindings and tokens are not resources that can be read
				}
				resources[owner].Subresources = append(resources[owner].Subresources, subresource)
				continue
			}
			name := version.WithResource(r.Name)
			resources = append(resources, Resource{name, r.Kind, r.Namespaced, nil, r.Verbs, upstream[name].Stub})
		}
	}
	slices.SortStableFunc(resources, func(a, b Resource) int { // the lists are in random order
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version))
	})
	return resources, nil
}

// timeless are merge patches of examples that set a field whose default is the time of the request. Without them, an
// update with the same body changes the object when a second has passed since its creation.
var timeless = map[string]map[string]any{
	"devicetaintrules": {"spec": map[string]any{"taint": map[string]any{"timeAdded": "2026-01-02T03:04:05Z"}}},
}

// settled is a text that an object of a kind contains once the server's controllers have processed it.
var settled = map[string]string{
	"customresourcedefinitions": "InitialNamesAccepted",
	"apiservices":               "Available",
	"flowschemas":               "Dangling",
}

// lively are the resources whose objects the servers' controllers write all the time. Other scripts cover their status
// and deletion.
var lively = []string{"apiservices", "customresourcedefinitions", "flowschemas"}

// lastOfLively is the case before which the template ends for lively resources.
const lastOfLively = "delete orphaning"

// connections are the subresources that connect to a kubelet or a pod.
var connections = []string{"attach", "exec", "log", "portforward", "proxy"}

// Generate expands the template for every resource.
func Generate(template *Script, resources []Resource) ([]*Script, error) {
	var scripts []*Script
	for _, r := range resources {
		script, err := r.script(template)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.title(), err)
		}
		scripts = append(scripts, script)
	}
	return scripts, nil
}

// isKept reports whether objects that are created are stored.
func (r *Resource) isKept() bool {
	return slices.Contains(r.Verbs, "create") && slices.Contains(r.Verbs, "get")
}

func (r *Resource) isLively() bool { return slices.Contains(lively, r.Resource) }

func (r *Resource) title() string { return r.GroupVersion().String() + " " + r.Resource }

func (r *Resource) script(template *Script) (*Script, error) {
	object, err := r.object()
	if err != nil {
		return nil, err
	}
	values := r.values(object)
	script := &Script{Name: r.title(), Area: r.GroupVersion().String()}
	for _, c := range template.Cases {
		if r.isLively() && c.Name == lastOfLively {
			break
		}
		subresources, err := r.applies(&c)
		if err != nil {
			return nil, err
		}
		for _, subresource := range subresources {
			filled, err := fill(r.possible(c), append(values, "${subresource}", subresource), object)
			if err != nil {
				return nil, fmt.Errorf("case %q: %w", c.Name, err)
			}
			script.Cases = append(script.Cases, filled)
		}
	}
	return script, nil
}

// applies returns the subresources to which a case of the template applies: the named ones that exist, or all, or ""
// for a case of the resource itself.
func (r *Resource) applies(c *Case) ([]string, error) {
	switch wanted, ok := c.directive("for"); {
	case c.Method == "EVENTS" && !slices.Contains(r.Verbs, "watch"):
		return nil, nil
	case !ok:
		return []string{""}, nil
	case wanted == "each":
		return slices.DeleteFunc(slices.Clone(r.Subresources), func(s string) bool {
			return slices.Contains(connections, s)
		}), nil
	case wanted == "":
		return nil, fmt.Errorf("case %q: @for says not what for", c.Name)
	case wanted == "status" && r.isLively():
		return nil, nil
	case slices.Contains(r.Subresources, wanted):
		return []string{wanted}, nil
	}
	return nil, nil
}

// possible returns a case without the directives that need an object that can be read.
func (r *Resource) possible(c Case) Case {
	if r.isKept() {
		return c
	}
	needs := []string{"capture", "revision"}
	c.Directives = slices.DeleteFunc(slices.Clone(c.Directives), func(d Directive) bool {
		return slices.Contains(needs, d.Name)
	})
	return c
}

// object returns a complete object, with a label that lists of a cluster-scoped kind select.
func (r *Resource) object() (map[string]any, error) {
	object := map[string]any{"metadata": map[string]any{"name": "stub"}}
	if r.Stub != "" {
		object = map[string]any{}
		if err := json.Unmarshal([]byte(r.Stub), &object); err != nil {
			return nil, err
		}
	}
	added := map[string]any{
		"apiVersion": r.GroupVersion().String(), "kind": r.Kind,
		"metadata": map[string]any{"labels": map[string]any{"differential": r.slug()}},
	}
	return merge(merge(object, timeless[r.Resource]), added), nil
}

func (r *Resource) slug() string { return slug(r.title()) }

// values returns the variables of the template as arguments of strings.NewReplacer.
func (r *Resource) values(object map[string]any) []string {
	root := "/apis/" + r.GroupVersion().String()
	if r.Group == "" {
		root = "/api/" + r.Version
	}
	everywhere, collection := root+"/"+r.Resource, root+"/"+r.Resource
	if r.Namespaced {
		collection = root + "/namespaces/${ns}/" + r.Resource
	}
	name := fmt.Sprint(lookup(object, []string{"metadata", "name"}))
	wait := settled[r.Resource]
	if wait == "" {
		wait = "metadata"
	}
	return []string{
		"${collection}", collection, "${everywhere}", everywhere, "${item}", collection + "/" + name, "${name}", name,
		"${apiVersion}", r.GroupVersion().String(), "${kind}", r.Kind, "${resource}", r.Resource,
		"${label}", "differential%3D" + r.slug(), "${settled}", wait,
	}
}

// fill replaces the variables in a case of the template. A body that begins with ${object} is the object, changed by
// the merge patch that follows.
func fill(c Case, values []string, object map[string]any) (Case, error) {
	replace := strings.NewReplacer(values...).Replace
	filled := Case{
		Name: replace(c.Name), Method: c.Method, Path: replace(c.Path), Header: map[string]string{}, Body: replace(c.Body),
	}
	for name, value := range c.Header {
		filled.Header[name] = replace(value)
	}
	for _, d := range c.Directives {
		if d.Name != "for" {
			filled.Directives = append(filled.Directives, Directive{d.Name, replace(d.Arguments)})
		}
	}
	change, ok := strings.CutPrefix(filled.Body, "${object}")
	if !ok {
		return filled, nil
	}
	changed := object
	if change = strings.TrimSpace(change); change != "" {
		var patch map[string]any
		if err := json.Unmarshal([]byte(change), &patch); err != nil {
			return filled, err
		}
		changed = merge(object, patch)
	}
	body, err := json.Marshal(changed)
	filled.Body = string(body)
	return filled, err
}

// merge applies a JSON merge patch to an object.
func merge(object, patch map[string]any) map[string]any {
	merged := map[string]any{}
	for key, value := range object {
		merged[key] = value
	}
	for key, value := range patch {
		change, isObject := value.(map[string]any)
		old, wasObject := merged[key].(map[string]any)
		switch {
		case value == nil:
			delete(merged, key)
		case isObject && wasObject:
			merged[key] = merge(old, change)
		default:
			merged[key] = value
		}
	}
	return merged
}

// LoadTemplate reads the script that Generate expands for each resource.
func LoadTemplate(path string) (*Script, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return ParseScript("template", string(text))
}
