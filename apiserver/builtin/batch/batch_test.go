package batch_test

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/builtin/batch"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/resource"
)

func TestServed(t *testing.T) {
	t.Parallel()
	builtintest.CheckServed(t, batch.Definitions(builtintest.NewBuilder()), []builtintest.Served{
		{
			Resource: "cronjobs", Kind: "CronJob", Versions: "v1", ShortNames: "cj", Categories: "all", Namespaced: true,
			Stored:       "cronjobs batch/v1",
			Columns:      "Schedule, Timezone, Suspend, Active, Last Schedule, Age, (Containers), (Images), (Selector)",
			Subresources: []string{"status"},
		},
		{
			Resource: "jobs", Kind: "Job", Versions: "v1", Categories: "all", Namespaced: true, Stored: "jobs batch/v1",
			Fields:       "status.successful",
			Columns:      "Status, Completions, Duration, Age, (Containers), (Images), (Selector)",
			Subresources: []string{"status"},
		},
	})
}

const (
	job = `
apiVersion: batch/v1
kind: Job
metadata: {name: report, namespace: default, generation: 7}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: "example.com/report:1"}]}
`
	cronJob = `
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: default, generation: 7}
spec:
  schedule: "0 3 * * *"
  jobTemplate:
    spec:
      template:
        spec: {restartPolicy: Never, containers: [{name: main, image: "example.com/report:1"}]}
`
	// manual is a patch of job that sets a selector.
	manual = "spec: {manualSelector: true, selector: {matchLabels: {app: report}}, " +
		"template: {metadata: {labels: {app: report}}}}"
)

func TestJobs(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, batch.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"create sets defaults, labels of the pods and no status": {
			Endpoint: "jobs", Object: job, With: "status: {succeeded: 3}",
			Want: map[string]string{
				"metadata.generation": "1", "spec.parallelism": "1", "spec.completions": "1", "spec.backoffLimit": "6",
				"spec.completionMode": "NonIndexed", "spec.suspend": "false", "spec.podReplacementPolicy": "TerminatingOrFailed",
				"spec.selector": `{"matchLabels":{"batch.kubernetes.io/controller-uid":"` + builtintest.UID + `"}}`,
				"spec.template.metadata.labels[job-name]":                     "report",
				"spec.template.metadata.labels[batch.kubernetes.io/job-name]": "report", "status": "{}",
			},
		},
		"a manual selector is kept": {
			Endpoint: "jobs", Object: job, With: manual,
			Want: map[string]string{
				"spec.selector": `{"matchLabels":{"app":"report"}}`, "spec.template.metadata.labels": `{"app":"report"}`,
			},
		},
		"a selector cannot be set unless it is manual": {
			Endpoint: "jobs", Object: job,
			With: "spec: {selector: {matchLabels: {app: report}}, template: {metadata: {labels: {app: report}}}}",
			Errors: []string{
				`spec.selector: Invalid value: {"matchLabels":{"app":"report","batch.kubernetes.io/controller-uid":"` +
					builtintest.UID + `"}}: ` + "`selector` not auto-generated",
			},
		},
		"pods are not always restarted": {
			Endpoint: "jobs", Object: job, With: "spec: {parallelism: -1, template: {spec: {restartPolicy: Always}}}",
			Errors: []string{
				"spec.parallelism: Invalid value: -1: must be greater than or equal to 0",
				`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`,
			},
		},
		"a change of the parallelism is a new generation": {
			Endpoint: "jobs", Object: job, Stored: "status: {succeeded: 1}",
			Update: "{spec: {parallelism: 3}, status: {succeeded: 9}}",
			Want:   map[string]string{"metadata.generation": "2", "spec.parallelism": "3", "status.succeeded": "1"},
		},
		"the completions are immutable": {
			Endpoint: "jobs", Object: job, Update: "spec: {completions: 3}",
			Errors: []string{"spec.completions: Invalid value: 3: field is immutable"},
		},
		"the nodes of a suspended job can change before it starts": {
			Endpoint: "jobs", Object: job, With: "spec: {suspend: true}",
			Update: "spec: {template: {spec: {nodeSelector: {disk: ssd}}}}",
			Want:   map[string]string{"metadata.generation": "2", "spec.template.spec.nodeSelector.disk": "ssd"},
		},
		"a status update keeps the spec": {
			Endpoint: "jobs/status", Object: job, Update: "{spec: {parallelism: 3}, status: {active: 1}}",
			Want: map[string]string{"metadata.generation": "1", "spec.parallelism": "1", "status.active": "1"},
		},
		"the number of succeeded pods does not decrease": {
			Endpoint: "jobs/status", Object: job, Stored: "status: {succeeded: 2}", Update: "status: {succeeded: 1}",
			Errors: []string{"status.succeeded: Invalid value: 1: cannot decrease the succeeded counter"},
		},
	})
}

func TestCronJobs(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, batch.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"create sets defaults and drops the status": {
			Endpoint: "cronjobs", Object: cronJob, With: "status: {lastScheduleTime: '2026-01-02T03:00:00Z'}",
			Want: map[string]string{
				"metadata.generation": "1", "spec.concurrencyPolicy": "Allow", "spec.suspend": "false",
				"spec.successfulJobsHistoryLimit": "3", "spec.failedJobsHistoryLimit": "1", "status": "{}",
			},
		},
		"the schedule and the name are validated": {
			Endpoint: "cronjobs", Object: cronJob,
			With: "{metadata: {name: a-name-of-more-than-fifty-two-characters-is-too-long-for-jobs}, spec: {schedule: often}}",
			Errors: []string{
				`spec.schedule: Invalid value: "often": expected exactly 5 fields, found 1: [often]`,
				"metadata.name: Invalid value: \"a-name-of-more-than-fifty-two-characters-is-too-long-for-jobs\": " +
					"must be no more than 52 characters",
			},
		},
		"the time zone is a field of its own": {
			Endpoint: "cronjobs", Object: cronJob, With: "spec: {schedule: 'TZ=UTC 0 3 * * *', timeZone: Nowhere/City}",
			Errors: []string{
				`spec.schedule: Invalid value: "TZ=UTC 0 3 * * *": cannot use TZ or CRON_TZ in schedule, use timeZone field instead`,
				`spec.timeZone: Invalid value: "Nowhere/City": unknown time zone Nowhere/City`,
			},
		},
		"a change of the schedule is a new generation": {
			Endpoint: "cronjobs", Object: cronJob,
			Update: "{spec: {schedule: '0 4 * * *'}, status: {lastScheduleTime: '2026-01-02T03:00:00Z'}}",
			Want:   map[string]string{"metadata.generation": "2", "spec.schedule": "0 4 * * *", "status": "{}"},
		},
		"a status update keeps the spec": {
			Endpoint: "cronjobs/status", Object: cronJob,
			Update: "{spec: {schedule: '0 4 * * *'}, status: {lastScheduleTime: '2026-01-02T03:00:00Z'}}",
			Want: map[string]string{
				"metadata.generation": "1", "spec.schedule": "0 3 * * *", "status.lastScheduleTime": "2026-01-02T03:00:00Z",
			},
		},
	})
}

// TestDeletionOfJobsWarns: clients that delete a Job without a propagation policy leave its pods behind.
func TestDeletionOfJobsWarns(t *testing.T) {
	t.Parallel()
	target := builtintest.FindTarget(t, batch.Definitions(builtintest.NewBuilder()), "jobs", "")
	warner := target.Endpoint.Delete.(resource.DeletionWarner)
	background, yes := metav1.DeletePropagationBackground, true
	const warning = "child pods are preserved by default when jobs are deleted; " +
		"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"
	for name, test := range map[string]struct {
		options metav1.DeleteOptions
		want    []string
	}{
		"no policy":                        {metav1.DeleteOptions{}, []string{warning}},
		"a policy":                         {metav1.DeleteOptions{PropagationPolicy: &background}, nil},
		"the option of clients before 1.6": {metav1.DeleteOptions{OrphanDependents: &yes}, nil},
	} {
		ctx := request.WithRequestInfo(t.Context(), &request.RequestInfo{APIGroup: "batch", APIVersion: "v1"})
		if got := warner.WarningsOnDelete(ctx, &test.options); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
	// In versions without that default there is nothing to warn about.
	ctx := request.WithRequestInfo(t.Context(), &request.RequestInfo{APIGroup: "batch", APIVersion: "v2"})
	if got := warner.WarningsOnDelete(ctx, &metav1.DeleteOptions{}); got != nil {
		t.Errorf("version v2: got %v, want no warning", got)
	}
}

// TestJobsAreOrphaned: the default propagation policy of batch/v1 is Orphan, and a job is deleted immediately.
func TestJobsAreOrphaned(t *testing.T) {
	t.Parallel()
	for plural, want := range map[string]rest.GarbageCollectionPolicy{
		"jobs": rest.OrphanDependents, "cronjobs": rest.DeleteDependents,
	} {
		target := builtintest.FindTarget(t, batch.Definitions(builtintest.NewBuilder()), plural, "")
		ctx := request.WithRequestInfo(t.Context(), &request.RequestInfo{APIGroup: "batch", APIVersion: "v1"})
		collected := target.Endpoint.Delete.(rest.GarbageCollectionDeleteStrategy)
		if got := collected.DefaultGarbageCollectionPolicy(ctx); got != want {
			t.Errorf("%s: got the policy %s, want %s", plural, got, want)
		}
		if _, ok := target.Endpoint.Delete.(rest.RESTGracefulDeleteStrategy); ok {
			t.Errorf("%s have a grace period", plural)
		}
	}
}

// TestSelectableFields: controllers select the jobs that have not succeeded.
func TestSelectableFields(t *testing.T) {
	t.Parallel()
	target := builtintest.FindTarget(t, batch.Definitions(builtintest.NewBuilder()), "jobs", "")
	object := builtintest.Decode(t, target, job+"status: {succeeded: 2}")
	set, err := target.Fields(object)
	if err != nil || set["status.successful"] != "2" || set["metadata.name"] != "report" {
		t.Errorf("got %v, %v", set, err)
	}
	if _, err := target.Fields(&runtime.Unknown{}); err == nil {
		t.Error("an object of another kind has fields of a job")
	}
}
