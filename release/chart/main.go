// Command chart generates the Helm chart from the manifests:
//
//	go run ./release/chart [-root .] [-output charts/quorate]
//
// With its default values, the chart renders the objects of manifests/install.yaml except the Namespace.
package main

import (
	"embed"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"quorate.dev/release/manifest"
)

// written are the files of the chart that are written by hand.
//
//go:embed all:written
var written embed.FS

func main() {
	root := flag.String("root", ".", "Directory of the repository.")
	output := flag.String("output", "", "Directory of the chart. Default: charts/quorate of the repository.")
	version := flag.String("version", "", "Version of the chart. Default: that in the file VERSION.")
	flag.Parse()
	if *output == "" {
		*output = filepath.Join(*root, "charts", "quorate")
	}
	if err := run(*root, *output, *version); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(root, output, version string) error {
	if version == "" {
		var err error
		if version, err = manifest.Version(root); err != nil {
			return err
		}
	}
	chart, err := generate(root, version)
	if err != nil {
		return err
	}
	return chart.Write(output)
}

// generate returns the files of the chart.
func generate(root, version string) (manifest.Directory, error) {
	objects, err := manifest.ReadAll(filepath.Join(root, "manifests", "install.yaml"))
	if err != nil {
		return nil, err
	}
	extension, err := manifest.Read(filepath.Join(root, "manifests", "extension.yaml"))
	if err != nil {
		return nil, err
	}
	tag, err := manifest.Tag(root, version)
	if err != nil {
		return nil, err
	}
	chart, err := copyWritten(version, tag)
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		if object.GetKind() == "Namespace" {
			continue // helm install --create-namespace creates the namespace
		}
		if err := addTemplate(chart, object, conditions[object.GetKind()+" "+object.GetName()]); err != nil {
			return nil, err
		}
	}
	for _, object := range extension {
		if err := addTemplate(chart, object, ".Values.extension.enabled"); err != nil {
			return nil, err
		}
	}
	return chart, addMonitoring(chart, root)
}

// addMonitoring adds the ServiceMonitor as a template. It adds rules and dashboards as files, which Helm does not
// evaluate, because they contain the delimiter of templates.
func addMonitoring(chart manifest.Directory, root string) error {
	objects, err := manifest.Read(filepath.Join(root, "manifests", "monitoring.yaml"))
	if err != nil {
		return err
	}
	for _, object := range objects {
		switch object.GetKind() {
		case "ServiceMonitor":
			err = addTemplate(chart, object, ".Values.monitoring.enabled")
		case "PrometheusRule":
			err = chart.Add("files/rules.yaml", object.Object["spec"])
		case "ConfigMap":
			for name, text := range object.Object["data"].(map[string]any) {
				chart["files/dashboards/"+name] = []byte(text.(string))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyWritten returns the files of the chart that are not generated, with the version, and with the tag of the image.
func copyWritten(version, tag string) (manifest.Directory, error) {
	chart := manifest.Directory{}
	values := strings.NewReplacer("appVersion: TAG", "appVersion: "+tag, "VERSION", version)
	return chart, fs.WalkDir(written, "written", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := written.ReadFile(file)
		name := strings.TrimPrefix(file, "written/")
		chart[name] = []byte(values.Replace(string(text)))
		return err
	})
}

// addTemplate adds the template of an object to the chart. Unless condition is empty, the object is rendered only if
// that expression of Helm is true. Cluster-wide permissions are rendered as a Role for each namespace of
// .Values.namespaces, if there are any.
func addTemplate(chart manifest.Directory, object manifest.Object, condition string) error {
	text, err := template(object)
	if err != nil {
		return err
	}
	if clusterWide(object) {
		namespaced, err := template(inNamespace(object))
		if err != nil {
			return err
		}
		text = "{{- if not .Values.namespaces }}\n" + text + "{{- end }}\n{{- range .Values.namespaces }}\n---\n" +
			namespaced + "{{- end }}\n"
	}
	if condition != "" {
		text = "{{- if " + condition + " }}\n" + text + "{{- end }}\n"
	}
	chart["templates/"+strings.ToLower(object.GetKind())+"-"+
		strings.ReplaceAll(object.GetName(), ".", "-")+".yaml"] = []byte(text)
	return nil
}

// template returns the template of an object: its YAML with the substitutions of its kind. It fails if a substitution
// does not apply exactly once.
func template(object manifest.Object) (string, error) {
	encoded, err := manifest.Encode(object)
	if err != nil {
		return "", err
	}
	text := string(encoded)
	if strings.Contains(text, "{{") {
		return "", fmt.Errorf("%s contains the delimiter of templates", object.GetName())
	}
	text = strings.ReplaceAll(text, "namespace: "+namespace+"\n", "namespace: {{ $.Release.Namespace }}\n")
	text = strings.ReplaceAll(text, "namespace: "+eachNamespace+"\n", "namespace: {{ . }}\n")
	for _, s := range substitutions[object.GetKind()] {
		if strings.Count(text, s.old) != 1 {
			return "", fmt.Errorf("%s %s contains %q %d times", object.GetKind(), object.GetName(), s.old,
				strings.Count(text, s.old))
		}
		text = strings.Replace(text, s.old, s.expression, 1)
	}
	return text, nil
}

// clusterWide reports whether an object grants the operator its permissions in all namespaces.
func clusterWide(object manifest.Object) bool {
	return object.GetName() == operator && (object.GetKind() == "ClusterRole" || object.GetKind() == "ClusterRoleBinding")
}

// inNamespace returns the Role or RoleBinding as the body of a loop over the namespaces in the chart's values. Within
// the loop, the template's dot is the name of the current namespace.
func inNamespace(object manifest.Object) manifest.Object {
	object = object.DeepCopy()
	object.SetKind(strings.TrimPrefix(object.GetKind(), "Cluster"))
	if roleRef, found := object.Object["roleRef"].(map[string]any); found {
		roleRef["kind"] = "Role"
	}
	object.SetNamespace(eachNamespace)
	return object
}
