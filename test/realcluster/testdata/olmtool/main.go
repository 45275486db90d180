// Command olmtool has the functions that lifecycle.sh needs in addition to OLM's programs. It is compiled inside OLM's
// source tree (lifecycle.sh build copies it to cmd/olmtool), so that it uses exactly the libraries that OLM vendors:
// operator-registry for serving, unpacking and rendering, and operator-framework/api for validation.
//
// In images, by the name it is called with:
//
//	opm serve DIR [--cache-dir D] [--port P]      the registry gRPC API over a file-based catalog
//	opm alpha bundle extract -m DIR -n NS -c CM   a bundle directory into a ConfigMap (OLM's unpack Job)
//	grpc_health_probe -addr=:50051                the probe of OLM's catalog pods
//	cp [-Rv] FILE TARGET                          the first step of OLM's unpack Job
//
// On the host:
//
//	olmtool chart DIR [-f VALUES] [KEY=VALUE...]  OLM's chart as YAML
//	olmtool image [flags] [HOST=IMAGE...]         an image as an OCI archive; prints its digest
//	olmtool labels DIR                            a bundle's image labels, one KEY=VALUE a line
//	olmtool name DIR                              package, CSV name and channels of a bundle
//	olmtool render DIR IMAGE                      a bundle as the catalog sees it
//	olmtool catalog OUT BUNDLE...                 a file-based catalog of bundle directories (each with a file "ref")
//	olmtool validate DIR [K8S-VERSION]            what opm and operator-framework/api check, and unknown fields
package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/blang/semver/v4"
	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
	interfaces "github.com/operator-framework/api/pkg/validation/interfaces"
	"github.com/operator-framework/operator-registry/alpha/declcfg"
	"github.com/operator-framework/operator-registry/pkg/api"
	"github.com/operator-framework/operator-registry/pkg/cache"
	"github.com/operator-framework/operator-registry/pkg/configmap"
	"github.com/operator-framework/operator-registry/pkg/image"
	"github.com/operator-framework/operator-registry/pkg/lib/bundle"
	"github.com/operator-framework/operator-registry/pkg/registry"
	"github.com/operator-framework/operator-registry/pkg/server"
	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	apiservervalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

func main() {
	args := os.Args[1:]
	var err error
	switch filepath.Base(os.Args[0]) {
	case "opm":
		err = opm(args)
	case "grpc_health_probe":
		err = probe(args)
	case "cp":
		err = cp(args)
	default:
		if len(args) == 0 {
			err = fmt.Errorf("usage: olmtool chart|image|labels|name|render|catalog|validate ...")
			break
		}
		cmd := map[string]func([]string) error{"chart": chart, "image": pack, "labels": labels, "name": name,
			"render": render, "catalog": catalog, "validate": validate, "opm": opm}[args[0]]
		if cmd == nil {
			err = fmt.Errorf("unknown command %q", args[0])
			break
		}
		err = cmd(args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// ---- in images

func opm(args []string) error {
	switch {
	case len(args) > 0 && args[0] == "serve":
		return serve(args[1:])
	case len(args) > 2 && strings.Join(args[:3], " ") == "alpha bundle extract":
		return extract(args[3:])
	}
	return fmt.Errorf("this opm knows only: serve, alpha bundle extract")
}

func serve(args []string) error {
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	port := f.StringP("port", "p", "50051", "")
	dir := f.String("cache-dir", "", "")
	f.String("pprof-addr", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return fmt.Errorf("serve: one directory expected")
	}
	if *dir == "" {
		d, err := os.MkdirTemp("", "opm-serve-cache-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(d)
		*dir = d
	}
	log := logrus.NewEntry(logrus.New())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	store, err := cache.New(*dir, cache.WithLog(log))
	if err != nil {
		return err
	}
	defer store.Close()
	if err := cache.LoadOrRebuild(ctx, store, os.DirFS(f.Arg(0))); err != nil {
		return fmt.Errorf("failed to load or rebuild cache: %v", err)
	}
	lis, err := net.Listen("tcp", ":"+*port)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	api.RegisterRegistryServer(s, server.NewRegistryServer(store))
	api.RegisterExperimentalRegistryServer(s, server.NewExperimentalRegistryServer(store))
	health.RegisterHealthServer(s, server.NewHealthServer())
	reflection.Register(s)
	log.WithField("port", *port).Info("serving registry")
	go func() { <-ctx.Done(); s.GracefulStop() }()
	return s.Serve(lis)
}

func extract(args []string) error {
	f := pflag.NewFlagSet("extract", pflag.ContinueOnError)
	f.Bool("debug", false, "")
	kubeconfig := f.StringP("kubeconfig", "k", "", "")
	dir := f.StringP("manifestsdir", "m", "/", "")
	cm := f.StringP("configmapname", "c", "", "")
	ns := f.StringP("namespace", "n", "", "")
	limit := f.Uint64P("datalimit", "l", 1<<20, "")
	gzip := f.BoolP("gzip", "z", false, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := configmap.NewConfigMapLoader(*cm, *ns, *dir, *gzip, *kubeconfig).Populate(*limit); err != nil {
		return fmt.Errorf("error loading manifests from directory: %s", err)
	}
	return nil
}

func probe(args []string) error {
	addr, timeout := ":50051", 5*time.Second
	for _, a := range args {
		a = strings.TrimLeft(a, "-")
		if v, ok := strings.CutPrefix(a, "addr="); ok {
			addr = v
		}
		if v, ok := strings.CutPrefix(a, "rpc-timeout="); ok {
			if d, err := time.ParseDuration(v); err == nil {
				timeout = d
			}
		}
	}
	if strings.HasPrefix(addr, ":") {
		addr = "127.0.0.1" + addr
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := health.NewHealthClient(c).Check(ctx, &health.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if r.Status != health.HealthCheckResponse_SERVING {
		return fmt.Errorf("status: %v", r.Status)
	}
	fmt.Println("status: SERVING")
	return nil
}

func cp(args []string) error {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		args = args[1:]
	}
	if len(args) != 2 {
		return fmt.Errorf("cp: one file and its target expected")
	}
	dst := args[1]
	if st, err := os.Stat(dst); err == nil && st.IsDir() {
		dst = filepath.Join(dst, filepath.Base(args[0]))
	}
	in, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	fmt.Printf("'%s' -> '%s'\n", args[0], dst)
	return out.Close()
}

// ---- OLM's chart

func chart(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("chart: a directory expected")
	}
	dir := args[0]
	meta, values := map[string]any{}, map[string]any{}
	read := func(file string, into *map[string]any) error {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		m := map[string]any{}
		if err := yaml.Unmarshal(b, &m); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		merge(*into, m)
		return nil
	}
	if err := read(filepath.Join(dir, "Chart.yaml"), &meta); err != nil {
		return err
	}
	if err := read(filepath.Join(dir, "values.yaml"), &values); err != nil {
		return err
	}
	for i := 1; i < len(args); i++ {
		if args[i] == "-f" && i+1 < len(args) {
			i++
			if err := read(args[i], &values); err != nil {
				return err
			}
			continue
		}
		k, v, ok := strings.Cut(args[i], "=")
		if !ok {
			return fmt.Errorf("chart: KEY=VALUE expected, not %q", args[i])
		}
		if k == "Chart.Version" {
			meta["version"] = v
			continue
		}
		var parsed any
		if err := yaml.Unmarshal([]byte(v), &parsed); err != nil {
			return err
		}
		keys, m := strings.Split(k, "."), map[string]any{}
		leaf := m
		for _, p := range keys[:len(keys)-1] {
			n := map[string]any{}
			leaf[p], leaf = n, n
		}
		leaf[keys[len(keys)-1]] = parsed
		merge(values, m)
	}
	upper := map[string]any{}
	for k, v := range meta {
		upper[strings.ToUpper(k[:1])+k[1:]] = v
	}
	data := map[string]any{
		"Values": values, "Chart": upper, "Release": map[string]any{"Name": "olm", "Namespace": values["namespace"]},
	}
	var t *template.Template
	indent := func(n int, s string) string {
		p := strings.Repeat(" ", n)
		return p + strings.ReplaceAll(s, "\n", "\n"+p)
	}
	t = template.New("chart").Funcs(template.FuncMap{
		"include": func(n string, d any) (string, error) {
			var b bytes.Buffer
			err := t.ExecuteTemplate(&b, n, d)
			return b.String(), err
		},
		"toYaml": func(v any) (string, error) {
			b, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(b), "\n"), err
		},
		"indent":  indent,
		"nindent": func(n int, s string) string { return "\n" + indent(n, s) },
		"quote":   func(v any) string { return strconv.Quote(fmt.Sprint(v)) },
		"default": func(d, v any) any {
			if v == nil || v == "" {
				return d
			}
			return v
		},
		"trunc": func(n int, s string) string {
			if len(s) > n {
				return s[:n]
			}
			return s
		},
		"trimSuffix": func(x, s string) string { return strings.TrimSuffix(s, x) },
	})
	files, err := filepath.Glob(filepath.Join(dir, "templates", "*"))
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if _, err := t.New(filepath.Base(f)).Parse(string(b)); err != nil {
			return err
		}
	}
	for _, f := range files {
		if strings.HasPrefix(filepath.Base(f), "_") {
			continue
		}
		var b bytes.Buffer
		if err := t.ExecuteTemplate(&b, filepath.Base(f), data); err != nil {
			return err
		}
		if strings.TrimSpace(b.String()) != "" {
			fmt.Printf("---\n%s\n", strings.TrimSpace(b.String()))
		}
	}
	return nil
}

func merge(dst, src map[string]any) {
	for k, v := range src {
		if sm, ok := v.(map[string]any); ok {
			if dm, ok := dst[k].(map[string]any); ok {
				merge(dm, sm)
				continue
			}
		}
		dst[k] = v
	}
}

// ---- images

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// pack writes an OCI archive with one layer. It does not keep times and owners, so that equal content has an equal
// digest.
func pack(args []string) error {
	f := pflag.NewFlagSet("image", pflag.ContinueOnError)
	out := f.StringP("out", "o", "", "the archive")
	nm := f.String("name", "", "NAME:TAG")
	user := f.String("user", "", "")
	entry := f.StringArray("entrypoint", nil, "")
	command := f.StringArray("cmd", nil, "")
	label := f.StringArray("label", nil, "KEY=VALUE")
	link := f.StringArray("link", nil, "IMAGE=TARGET")
	system := f.Bool("system", false, "with /tmp and /etc/passwd")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *out == "" || *nm == "" {
		return fmt.Errorf("image: --out and --name needed")
	}
	type item struct {
		host, link string
		mode       int64
		dir        bool
		data       []byte
	}
	items := map[string]item{}
	if *system {
		items["tmp"] = item{dir: true, mode: 0o1777}
		items["etc/passwd"] = item{mode: 0o644, data: []byte("root:x:0:0::/:\nnonroot:x:1001:1001::/:\n")}
	}
	for _, a := range f.Args() {
		h, in, ok := strings.Cut(a, "=")
		if !ok {
			return fmt.Errorf("image: HOST=IMAGE expected, not %q", a)
		}
		in = strings.Trim(in, "/")
		err := filepath.Walk(h, func(p string, info os.FileInfo, err error) error {
			if err != nil {
				return err
			}
			rel, _ := filepath.Rel(h, p)
			to := path.Join(in, filepath.ToSlash(rel))
			mode := int64(0o644)
			if info.IsDir() || info.Mode()&0o111 != 0 {
				mode = 0o755
			}
			items[to] = item{host: p, dir: info.IsDir(), mode: mode}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, l := range *link {
		n, t, _ := strings.Cut(l, "=")
		items[strings.Trim(n, "/")] = item{link: t, mode: 0o777}
	}
	for n := range items { // parents
		for d := path.Dir(n); d != "." && d != "/"; d = path.Dir(d) {
			if _, ok := items[d]; !ok {
				items[d] = item{dir: true, mode: 0o755}
			}
		}
	}
	names := make([]string, 0, len(items))
	for n := range items {
		if n != "" && n != "." {
			names = append(names, n)
		}
	}
	sort.Strings(names)
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	epoch := time.Unix(0, 0)
	for _, n := range names {
		it := items[n]
		h := &tar.Header{Name: n, Mode: it.mode, ModTime: epoch, Format: tar.FormatPAX}
		data := it.data
		switch {
		case it.dir:
			h.Typeflag, h.Name = tar.TypeDir, n+"/"
		case it.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, it.link
		default:
			h.Typeflag = tar.TypeReg
			if data == nil {
				b, err := os.ReadFile(it.host)
				if err != nil {
					return err
				}
				data = b
			}
			h.Size = int64(len(data))
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := tw.Write(data); err != nil {
				return err
			}
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	blobs := map[string][]byte{}
	add := func(mt string, b []byte) descriptor {
		s := sha256.Sum256(b)
		d := hex.EncodeToString(s[:])
		blobs["blobs/sha256/"+d] = b
		return descriptor{MediaType: mt, Digest: "sha256:" + d, Size: int64(len(b))}
	}
	ld := add("application/vnd.oci.image.layer.v1.tar", layer.Bytes())
	lbl := map[string]string{}
	for _, l := range *label {
		k, v, _ := strings.Cut(l, "=")
		lbl[k] = v
	}
	cfg, _ := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{
			"User": *user, "Entrypoint": *entry, "Cmd": *command, "Labels": lbl, "WorkingDir": "/",
			"Env": []string{"PATH=/bin:/"},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{ld.Digest}},
	})
	man, _ := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": add("application/vnd.oci.image.config.v1+json", cfg), "layers": []descriptor{ld},
	})
	md := add("application/vnd.oci.image.manifest.v1+json", man)
	tag := (*nm)[strings.LastIndex(*nm, ":")+1:]
	md.Annotations = map[string]string{"io.containerd.image.name": *nm, "org.opencontainers.image.ref.name": tag}
	index, _ := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []descriptor{md},
	})
	blobs["index.json"], blobs["oci-layout"] = index, []byte(`{"imageLayoutVersion":"1.0.0"}`)
	file, err := os.Create(*out)
	if err != nil {
		return err
	}
	tw = tar.NewWriter(file)
	keys := make([]string, 0, len(blobs))
	for k := range blobs {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		if err := tw.WriteHeader(
			&tar.Header{Name: k, Mode: 0o644, Size: int64(len(blobs[k])), Typeflag: tar.TypeReg, ModTime: epoch},
		); err != nil {
			return err
		}
		if _, err := tw.Write(blobs[k]); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	fmt.Println(md.Digest)
	return file.Close()
}

// ---- bundles and catalogs

func load(dir, ref string) (*registry.Bundle, error) {
	logrus.SetLevel(logrus.ErrorLevel)
	in, err := registry.NewImageInput(image.SimpleReference(ref), dir)
	if err != nil {
		return nil, err
	}
	return in.Bundle, nil
}

func annotations(dir string) (map[string]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, "metadata", "annotations.yaml"))
	if err != nil {
		return nil, err
	}
	m := struct {
		Annotations map[string]string `json:"annotations"`
	}{}
	if err := yaml.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	return m.Annotations, nil
}

func labels(args []string) error {
	a, err := annotations(args[0])
	if err != nil {
		return err
	}
	keys := make([]string, 0, len(a))
	for k := range a {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		fmt.Printf("%s=%s\n", k, a[k])
	}
	return nil
}

func name(args []string) error {
	b, err := load(args[0], "")
	if err != nil {
		return err
	}
	fmt.Println(b.Package, b.Name, b.Annotations.Channels)
	return nil
}

func toDeclcfg(b *registry.Bundle) (*declcfg.Bundle, error) {
	objs, props, err := registry.ObjectsAndPropertiesFromBundle(b)
	if err != nil {
		return nil, fmt.Errorf("get properties for bundle %q: %v", b.Name, err)
	}
	var related []declcfg.RelatedImage
	csv, err := b.ClusterServiceVersion()
	if err != nil {
		return nil, err
	}
	if csv == nil {
		return nil, fmt.Errorf("no ClusterServiceVersion in manifests/")
	}
	imgs := map[string]struct{}{}
	own, err := csv.GetOperatorImages()
	if err != nil {
		return nil, err
	}
	more, err := csv.GetRelatedImages()
	if err != nil {
		return nil, err
	}
	for _, m := range []map[string]struct{}{own, more} {
		for i := range m {
			imgs[i] = struct{}{}
		}
	}
	if b.BundleImage != "" {
		imgs[b.BundleImage] = struct{}{}
	}
	for i := range imgs {
		related = append(related, declcfg.RelatedImage{Image: i})
	}
	sort.Slice(related, func(i, j int) bool { return related[i].Image < related[j].Image })
	var csvJSON []byte
	for _, o := range b.Objects {
		if o.GetKind() == "ClusterServiceVersion" {
			if csvJSON, err = json.Marshal(o); err != nil {
				return nil, err
			}
		}
	}
	return &declcfg.Bundle{Schema: declcfg.SchemaBundle, Name: b.Name, Package: b.Package, Image: b.BundleImage,
		Properties: props, RelatedImages: related, Objects: objs, CsvJSON: string(csvJSON)}, nil
}

func render(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("render: DIR IMAGE expected")
	}
	b, err := load(args[0], args[1])
	if err != nil {
		return err
	}
	d, err := toDeclcfg(b)
	if err != nil {
		return err
	}
	return declcfg.WriteYAML(declcfg.DeclarativeConfig{Bundles: []declcfg.Bundle{*d}}, os.Stdout)
}

func build(bundles []*registry.Bundle) (*declcfg.DeclarativeConfig, error) {
	cfg := &declcfg.DeclarativeConfig{}
	byPkg := map[string][]*registry.Bundle{}
	for _, b := range bundles {
		byPkg[b.Package] = append(byPkg[b.Package], b)
	}
	pkgs := make([]string, 0, len(byPkg))
	for p := range byPkg {
		pkgs = append(pkgs, p)
	}
	sort.Strings(pkgs)
	for _, p := range pkgs {
		list, versions := byPkg[p], map[*registry.Bundle]semver.Version{}
		for _, b := range list {
			v, err := b.Version()
			if err != nil {
				return nil, err
			}
			sv, err := semver.Parse(v)
			if err != nil {
				return nil, fmt.Errorf("%s: version %q: %v", b.Name, v, err)
			}
			versions[b] = sv
		}
		sort.Slice(list, func(i, j int) bool { return versions[list[i]].LT(versions[list[j]]) })
		channels, order := map[string]*declcfg.Channel{}, []string{}
		for _, b := range list {
			d, err := toDeclcfg(b)
			if err != nil {
				return nil, err
			}
			cfg.Bundles = append(cfg.Bundles, *d)
			replaces, err := b.Replaces()
			if err != nil {
				return nil, err
			}
			skips, err := b.Skips()
			if err != nil {
				return nil, err
			}
			skipRange, err := b.SkipRange()
			if err != nil {
				return nil, err
			}
			for _, c := range b.Channels {
				c = strings.TrimSpace(c)
				ch := channels[c]
				if ch == nil {
					ch = &declcfg.Channel{Schema: declcfg.SchemaChannel, Name: c, Package: p}
					channels[c], order = ch, append(order, c)
				}
				e := declcfg.ChannelEntry{Name: b.Name, Replaces: replaces, Skips: skips, SkipRange: skipRange}
				// A CSV without an upgrade path replaces the next older version, as the author of a catalog would
				// declare.
				if replaces == "" && len(skips) == 0 && len(ch.Entries) > 0 {
					e.Replaces = ch.Entries[len(ch.Entries)-1].Name
				}
				ch.Entries = append(ch.Entries, e)
			}
		}
		newest := list[len(list)-1]
		pkg := declcfg.Package{Schema: declcfg.SchemaPackage, Name: p, DefaultChannel: newest.Annotations.DefaultChannelName}
		if pkg.DefaultChannel == "" && len(newest.Channels) > 0 {
			pkg.DefaultChannel = strings.TrimSpace(newest.Channels[0])
		}
		if d, err := newest.Description(); err == nil {
			pkg.Description = d
		}
		if icons, err := newest.Icons(); err == nil && len(icons) > 0 {
			pkg.Icon = &declcfg.Icon{Data: icons[0].Base64data, MediaType: icons[0].MediaType}
		}
		cfg.Packages = append(cfg.Packages, pkg)
		for _, c := range order {
			cfg.Channels = append(cfg.Channels, *channels[c])
		}
	}
	if _, err := declcfg.ConvertToModel(*cfg); err != nil {
		return nil, fmt.Errorf("the catalog is not valid: %v", err)
	}
	return cfg, nil
}

func catalog(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("catalog: OUT BUNDLE... expected")
	}
	var bundles []*registry.Bundle
	for _, d := range args[1:] {
		ref, err := os.ReadFile(filepath.Join(d, "ref"))
		if err != nil {
			return err
		}
		b, err := load(d, strings.TrimSpace(string(ref)))
		if err != nil {
			return fmt.Errorf("%s: %v", d, err)
		}
		bundles = append(bundles, b)
	}
	cfg, err := build(bundles)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(args[0]); err != nil {
		return err
	}
	return declcfg.WriteFS(*cfg, args[0], declcfg.WriteYAML, ".yaml")
}

// ---- validation

func validate(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("validate: DIR expected")
	}
	dir, seen, errs := args[0], map[string]bool{}, 0
	say := func(level, from, text string) {
		text = strings.Join(strings.Fields(text), " ")
		if k := level + text; !seen[k] {
			seen[k] = true
			if level == "ERROR" {
				errs++
			}
			fmt.Printf("%-7s %-16s %s\n", level, from, text)
		}
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	v := bundle.NewImageValidator(nil, logrus.NewEntry(log), "bundle-objects")
	each := func(from string, err error) {
		if ve, ok := err.(bundle.ValidationError); ok {
			for _, e := range ve.Errors {
				say("ERROR", from, e.Error())
			}
		} else if err != nil {
			say("ERROR", from, err.Error())
		}
	}
	each("bundle-format", v.ValidateBundleFormat(dir))
	each("bundle-content", v.ValidateBundleContent(filepath.Join(dir, "manifests")))
	// cpb, in the unpack Job, looks for this name, and all readers stop after the first document in a file.
	if _, err := os.Stat(filepath.Join(dir, "metadata", bundle.AnnotationsFile)); err != nil {
		say("ERROR", "layout", "no metadata/"+bundle.AnnotationsFile)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "manifests", "*"))
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		n := 0
		for d := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
			doc, err := d.Read()
			if err != nil {
				break
			}
			if x := map[string]any{}; yaml.Unmarshal(doc, &x) == nil && len(x) > 0 {
				n++
			}
		}
		if n > 1 {
			say("ERROR", "layout", fmt.Sprintf("%s: %d documents, of which only the first counts", filepath.Base(file), n))
		}
	}
	b, err := manifests.GetBundleFromDir(dir)
	if err != nil {
		say("ERROR", "load", err.Error())
	} else {
		opts := map[string]string{}
		if len(args) > 1 {
			opts["k8s-version"] = args[1]
		}
		objs := append(b.ObjectsToValidate(), opts)
		for _, x := range []struct {
			name string
			v    interfaces.Validator
		}{
			{"csv", validation.ClusterServiceVersionValidator},
			{"crd", validation.CustomResourceDefinitionValidator},
			{"bundle", validation.BundleValidator},
			{"operatorhub/v2", validation.OperatorHubV2Validator},
			{"categories", validation.StandardCategoriesValidator},
			{"capabilities", validation.StandardCapabilitiesValidator},
			{"objects", validation.ObjectValidator},
			{"deprecated-apis", validation.AlphaDeprecatedAPIsValidator},
			{"good-practices", validation.GoodPracticesValidator},
		} {
			for _, r := range x.v.Validate(objs...) {
				for _, e := range r.Errors {
					say("ERROR", x.name, e.Error())
				}
				for _, w := range r.Warnings {
					say("WARNING", x.name, w.Error())
				}
			}
		}
	}
	// The checks above do not include what an API server checks: the CSV against OLM's CRD, and the examples against
	// the CRDs in the bundle.
	crds := map[schema.GroupKind]*apiextensionsv1.CustomResourceDefinition{}
	if exe, err := os.Executable(); err == nil {
		crdsFrom(filepath.Join(filepath.Dir(exe), "chart", "crds"), crds)
	}
	for file, err := range crdsFrom(filepath.Join(dir, "manifests"), crds) {
		say("ERROR", "strict-fields", file+": "+err.Error())
	}
	for _, file := range files {
		u := &unstructured.Unstructured{}
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if data, err = yaml.YAMLToJSON(data); err != nil || utiljson.Unmarshal(data, &u.Object) != nil ||
			u.GetKind() != "ClusterServiceVersion" {
			continue
		}
		for _, e := range admit(u, crds) {
			say("ERROR", "api-schema", filepath.Base(file)+": "+e)
		}
		var examples []map[string]any
		if utiljson.Unmarshal([]byte(u.GetAnnotations()["alm-examples"]), &examples) != nil {
			continue
		}
		for i, x := range examples {
			for _, e := range admit(&unstructured.Unstructured{Object: x}, crds) {
				say("ERROR", "alm-examples", fmt.Sprintf("[%d] %v: %s", i, x["kind"], e))
			}
		}
	}
	rb, err := load(dir, "example.com/bundle:validate")
	if err == nil {
		_, err = build([]*registry.Bundle{rb})
	}
	if err != nil {
		say("ERROR", "catalog", err.Error())
	}
	if errs > 0 {
		return fmt.Errorf("%d error(s)", errs)
	}
	fmt.Println("valid: no errors")
	return nil
}

// crdsFrom adds the CRDs in a directory to a map, and returns the errors in their fields by file.
func crdsFrom(dir string, to map[schema.GroupKind]*apiextensionsv1.CustomResourceDefinition) map[string]error {
	bad := map[string]error{}
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, file := range files {
		c := &apiextensionsv1.CustomResourceDefinition{}
		if data, err := os.ReadFile(file); err == nil && yaml.Unmarshal(data, c) == nil &&
			c.Kind == "CustomResourceDefinition" {
			if err := yaml.UnmarshalStrict(data, &apiextensionsv1.CustomResourceDefinition{}); err != nil {
				bad[filepath.Base(file)] = err
			}
			to[schema.GroupKind{Group: c.Spec.Group, Kind: c.Spec.Names.Kind}] = c
		}
	}
	return bad
}

// admit returns the errors with which an API server that has these CRDs would reject an object, including unknown
// fields.
func admit(
	u *unstructured.Unstructured, crds map[schema.GroupKind]*apiextensionsv1.CustomResourceDefinition,
) (out []string) {
	gvk := u.GroupVersionKind()
	crd := crds[gvk.GroupKind()]
	if crd == nil {
		return nil
	}
	for _, v := range crd.Spec.Versions {
		if v.Name != gvk.Version || v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		props := &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
			v.Schema.OpenAPIV3Schema, props, nil,
		); err != nil {
			return []string{err.Error()}
		}
		s, err := structural.NewStructural(props)
		if err != nil {
			return []string{"schema: " + err.Error()}
		}
		validator, _, err := apiservervalidation.NewSchemaValidator(props)
		if err != nil {
			return []string{"schema: " + err.Error()}
		}
		obj := u.DeepCopy().Object
		for _, f := range pruning.PruneWithOptions(
			obj, s, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true},
		) {
			out = append(out, "unknown field "+f)
		}
		defaulting.Default(obj, s)
		for _, e := range apiservervalidation.ValidateCustomResource(nil, obj, validator) {
			out = append(out, e.Error())
		}
		if rules := cel.NewValidator(s, true, celconfig.PerCallLimit); rules != nil {
			errs, _ := rules.Validate(context.Background(), nil, s, obj, nil, celconfig.RuntimeCELCostBudget)
			for _, e := range errs {
				out = append(out, e.Error())
			}
		}
		return out
	}
	return []string{fmt.Sprintf("its CRD has no version %q", gvk.Version)}
}
