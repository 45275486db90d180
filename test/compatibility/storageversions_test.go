package compatibility

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/api/apiserverinternal/v1alpha1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"quorate.dev/test/upstream"
)

// TestStorageVersions runs four replicas on one etcd that record their storage versions at the same time: Quorate
// twice, kube-apiserver, and Quorate with --emulated-version=1.36. Each replica must have an entry for every resource
// that it serves. The entries of Quorate and kube-apiserver must be equal, and a StorageVersion must have a common
// version exactly if all replicas store the resource in the same version.
func TestStorageVersions(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	_, shared := upstream.NewOptions(t)
	replicas := []struct {
		host      string
		start     starter
		arguments []string
	}{
		{"kubernetes", upstream.StartKubernetes, nil},
		{"first", upstream.StartQuorate, nil},
		{"second", upstream.StartQuorate, nil},
		{"emulating", upstream.StartQuorate, []string{"--emulated-version=1.36"}},
	}
	processes := make([]*upstream.APIServer, len(replicas))
	var starts errgroup.Group
	for i, replica := range replicas {
		start := onHost(t, replica.host, replica.start)
		starts.Go(func() (err error) {
			processes[i], err = start(t.Context(), upstream.Options{
				Directory: filepath.Join(shared.Directory, replica.host), PKI: shared.PKI, Etcd: shared.Etcd,
				Arguments: append(replica.arguments, "--feature-gates=StorageVersionAPI=true,APIServerIdentity=true",
					"--runtime-config=internal.apiserver.k8s.io/v1alpha1=true"),
			})
			return err
		})
	}
	if err := starts.Wait(); err != nil {
		t.Fatal(err)
	}
	clients := make([]*kubernetes.Clientset, len(processes))
	for i, process := range processes {
		process.StopAfter(t)
		clients[i] = kubernetes.NewForConfigOrDie(process.Admin)
	}
	ids := identities(t, clients[0])
	t.Logf("identities: %v", ids)
	recorded := awaitStorageVersions(t, clients[0], ids)
	mixed := 0
	for _, object := range recorded {
		theirs, ours := entryOf(object, ids["kubernetes"]), entryOf(object, ids["first"])
		ours.APIServerID = theirs.APIServerID
		mustEqual(t, object.Name, fmt.Sprintf("%+v", sortedEntry(theirs)), fmt.Sprintf("%+v", sortedEntry(ours)))
		if !checkCommon(t, object) {
			mixed++
		}
	}
	if mixed == 0 {
		t.Error("no resource is stored in different versions, so that the test shows less than it promises")
	}
	t.Logf("%d StorageVersions, %d without a common version", len(recorded), mixed)
}

// identities returns the names of the identity Leases by the host names of their servers.
func identities(t *testing.T, client kubernetes.Interface) map[string]string {
	t.Helper()
	leases, err := client.CoordinationV1().Leases("kube-system").List(t.Context(),
		meta.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, lease := range leases.Items {
		ids[lease.Labels["kubernetes.io/hostname"]] = lease.Name
	}
	return ids
}

// awaitStorageVersions waits until every StorageVersion has an entry of each server, and returns the StorageVersions.
// The emulating server does not serve resources that are new in this version.
func awaitStorageVersions(
	t *testing.T, client kubernetes.Interface, ids map[string]string,
) (recorded []v1alpha1.StorageVersion) {
	t.Helper()
	var missing []string
	complete := func(ctx context.Context) (bool, error) {
		list, err := client.InternalV1alpha1().StorageVersions().List(ctx, meta.ListOptions{})
		if err != nil {
			return false, err
		}
		recorded, missing = list.Items, nil
		for _, object := range list.Items {
			for host, id := range ids {
				if entryOf(object, id).APIServerID == "" && host != "emulating" {
					missing = append(missing, object.Name+" of "+host)
				}
			}
		}
		return len(missing) == 0 && len(recorded) > 50, nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, complete); err != nil {
		t.Fatalf("%d StorageVersions, entries are missing: %v: %v", len(recorded), missing, err)
	}
	return recorded
}

func entryOf(object v1alpha1.StorageVersion, id string) v1alpha1.ServerStorageVersion {
	for _, entry := range object.Status.StorageVersions {
		if entry.APIServerID == id {
			return entry
		}
	}
	return v1alpha1.ServerStorageVersion{}
}

// sortedEntry returns an entry whose lists are sorted: kube-apiserver's are in random order.
func sortedEntry(entry v1alpha1.ServerStorageVersion) v1alpha1.ServerStorageVersion {
	entry.DecodableVersions = slices.Sorted(slices.Values(entry.DecodableVersions))
	entry.ServedVersions = slices.Sorted(slices.Values(entry.ServedVersions))
	return entry
}

// checkCommon checks the common version of an object against its entries, and reports whether all entries are equal.
func checkCommon(t *testing.T, object v1alpha1.StorageVersion) bool {
	t.Helper()
	var encodings []string
	for _, entry := range object.Status.StorageVersions {
		encodings = append(encodings, entry.EncodingVersion)
	}
	slices.Sort(encodings)
	encodings = slices.Compact(encodings)
	common := ""
	if object.Status.CommonEncodingVersion != nil {
		common = *object.Status.CommonEncodingVersion
	}
	want, status := encodings[0], v1alpha1.ConditionTrue
	if len(encodings) > 1 {
		want, status = "", v1alpha1.ConditionFalse
	}
	if common != want {
		t.Errorf("%s has the common version %q of %s", object.Name, common, strings.Join(encodings, " and "))
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == v1alpha1.AllEncodingVersionsEqual && condition.Status != status {
			t.Errorf("%s has the condition %+v with %v", object.Name, condition, encodings)
		}
	}
	return len(encodings) == 1
}
