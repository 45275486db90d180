// Command bundle generates the OLM bundle and its catalog from the manifests:
//
//	go run ./release/bundle [-image quorate:v0.1.0] [-bundle-image quorate-bundle:v0.1.0] [-replaces quorate.v0.0.9] [-monitoring]
//
// It replaces the directories bundle and catalog below -output, by default the repository.
package main

import (
	"cmp"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"quorate.dev/release/manifest"
)

// packageName is the name of the operator in catalogs.
const packageName = "quorate"

// channel is the only channel of the catalog.
const channel = "stable"

// release describes the bundle to generate.
type release struct {
	root        string // directory of the repository
	version     string // without the prefix v
	image       string // image of the operator and of the API servers
	bundleImage string
	replaces    string // name of the previous ClusterServiceVersion; may be empty
	monitoring  bool   // adds the objects of the Prometheus operator to the bundle
}

func main() {
	var r release
	flag.StringVar(&r.root, "root", ".", "Directory of the repository.")
	flag.StringVar(&r.image, "image", "",
		"Image of the operator and the API servers. Default: quorate with the tag of the version.")
	flag.StringVar(&r.bundleImage, "bundle-image", "",
		"Image of the bundle, for the catalog. Default: quorate-bundle:v and the version.")
	flag.StringVar(&r.replaces, "replaces", "", "Name of the ClusterServiceVersion that this one replaces.")
	flag.StringVar(&r.version, "version", "", "Version. Default: that in the file VERSION.")
	flag.BoolVar(&r.monitoring, "monitoring", false,
		"Add the ServiceMonitor and the PrometheusRule, for clusters with the Prometheus operator.")
	output := flag.String("output", "", "Directory of bundle/ and catalog/. Default: that of the repository.")
	flag.Parse()
	if err := r.write(cmp.Or(*output, r.root)); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func (r *release) write(output string) error {
	if err := r.complete(); err != nil {
		return err
	}
	bundle, catalog, err := r.generate()
	if err != nil {
		return err
	}
	if err := bundle.Write(filepath.Join(output, "bundle")); err != nil {
		return err
	}
	return catalog.Write(filepath.Join(output, "catalog"))
}

func (r *release) complete() error {
	if r.version == "" {
		version, err := manifest.Version(r.root)
		if err != nil {
			return err
		}
		r.version = version
	}
	tag, err := manifest.Tag(r.root, r.version)
	if err != nil {
		return err
	}
	r.image = cmp.Or(r.image, "quorate:v"+tag)
	r.bundleImage = cmp.Or(r.bundleImage, "quorate-bundle:v"+r.version)
	return nil
}

// name returns the name of the ClusterServiceVersion.
func (r *release) name() string { return packageName + ".v" + r.version }

// inBundle are the kinds of objects, in addition to CustomResourceDefinitions, that are files of the bundle. OLM
// creates the other objects from the ClusterServiceVersion. The namespace of the Subscription replaces the Namespace in
// the manifests.
var inBundle = map[string]bool{"ClusterRole": true, "Service": true, "PodDisruptionBudget": true, "NetworkPolicy": true}

// generate returns the files of the bundle and of the catalog.
func (r *release) generate() (bundle, catalog manifest.Directory, err error) {
	objects, err := manifest.Read(filepath.Join(r.root, "manifests", "install.yaml"))
	if err != nil {
		return nil, nil, err
	}
	examples, err := manifest.ReadAll(r.samples()...)
	if err != nil {
		return nil, nil, err
	}
	csv, err := r.clusterServiceVersion(objects, examples)
	if err != nil {
		return nil, nil, err
	}
	bundle, err = r.bundle(csv, objects)
	if err != nil {
		return nil, nil, err
	}
	catalog, err = r.catalog(csv, objects)
	return bundle, catalog, err
}

func (r *release) samples() []string {
	files := []string{}
	for _, name := range []string{"demo", "external-etcd", "backup", "backup-schedule", "kubeconfig"} {
		files = append(files, filepath.Join(r.root, "config", "samples", name+".yaml"))
	}
	return files
}

func (r *release) bundle(csv manifest.Object, objects []manifest.Object) (manifest.Directory, error) {
	files := manifest.Directory{}
	add := func(name string, value any) error { return files.Add(name, value) }
	err := add("manifests/quorate.clusterserviceversion.yaml", csv)
	for _, object := range objects {
		if err != nil {
			return nil, err
		}
		switch kind := object.GetKind(); {
		case kind == "CustomResourceDefinition":
			err = add("manifests/"+object.GetName()+".crd.yaml", object)
		case inBundle[kind] && !(kind == "ClusterRole" && grantedByOLM[object.GetName()]):
			object = object.DeepCopy()
			object.SetNamespace("") // OLM sets the namespace of the Subscription
			err = add("manifests/"+object.GetName()+"."+fileKind[kind]+".yaml", object)
		}
	}
	if err != nil {
		return nil, err
	}
	if r.monitoring {
		if err := r.addMonitoring(files); err != nil {
			return nil, err
		}
	}
	if err := add("metadata/annotations.yaml", map[string]any{"annotations": annotations()}); err != nil {
		return nil, err
	}
	return files, add("tests/scorecard/config.yaml", scorecard())
}

var fileKind = map[string]string{
	"ClusterRole": "clusterrole", "Service": "service", "PodDisruptionBudget": "poddisruptionbudget",
	"NetworkPolicy": "networkpolicy",
}

// annotations returns the annotations of the bundle, which are also the labels of its image.
func annotations() map[string]string {
	const prefix = "operators.operatorframework.io."
	return map[string]string{
		prefix + "bundle.mediatype.v1":       "registry+v1",
		prefix + "bundle.manifests.v1":       "manifests/",
		prefix + "bundle.metadata.v1":        "metadata/",
		prefix + "bundle.package.v1":         packageName,
		prefix + "bundle.channels.v1":        channel,
		prefix + "bundle.channel.default.v1": channel,
		prefix + "test.mediatype.v1":         "scorecard+v1",
		prefix + "test.config.v1":            "tests/scorecard/",
	}
}
