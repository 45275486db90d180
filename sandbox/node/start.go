package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/sandbox/container"
	"quorate.dev/sandbox/probe"
	"quorate.dev/sandbox/process"
)

// startDue starts the containers that are due: the init containers one after the other, then all main containers.
func (w *worker) startDue(ctx context.Context, pod *corev1.Pod) error {
	for _, u := range w.initial {
		if !u.complete() {
			return w.startUnit(ctx, pod, u)
		}
	}
	var failures []error
	for _, u := range w.main {
		failures = append(failures, w.startUnit(ctx, pod, u))
	}
	return errors.Join(failures...)
}

func (w *worker) startUnit(ctx context.Context, pod *corev1.Pod, u *unit) error {
	if u.process != nil || u.completed || w.now().Before(u.notBefore) {
		return nil
	}
	command, err := w.command(pod, u)
	if err != nil {
		u.waiting = corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: err.Error()}
		return fmt.Errorf("container %s: %w", u.spec.Name, err)
	}
	p, err := w.agent.options.Spawner.Start(command)
	if err != nil {
		u.waiting = corev1.ContainerStateWaiting{Reason: "RunContainerError", Message: err.Error()}
		return fmt.Errorf("container %s: %w", u.spec.Name, err)
	}
	u.setProcess(p)
	go func() {
		<-p.Done()
		w.notify()
	}()
	w.event(pod, corev1.EventTypeNormal, "Started", "Container started: %s, process %d", u.spec.Name, p.ID())
	w.watch(ctx, u)
	return nil
}

// command returns the command that runs a container, and creates the folder and termination message file that it needs.
func (w *worker) command(pod *corev1.Pod, u *unit) (process.Command, error) {
	environment, err := container.ResolveEnvironment(pod, u.spec, w.agent.lister.objects)
	if err != nil {
		return process.Command{}, err
	}
	mounts, err := w.mounts(u, environment)
	if err != nil {
		return process.Command{}, err
	}
	command, err := container.ResolveCommand(u.spec, environment, mounts, w.podIP)
	if err != nil {
		return process.Command{}, err
	}
	if err := u.createMessageFile(); err != nil {
		return process.Command{}, err
	}
	standard := container.Environment{
		"HOSTNAME": hostname(pod), "TMPDIR": mounts.Translate("/tmp"), "PATH": os.Getenv("PATH"),
	}
	options := w.agent.options
	return process.Command{
		Executable: cmp.Or(options.Images[u.spec.Image], options.Executable),
		Name:       command.Name, Args: command.Args, Directory: w.folder, LogFile: u.log,
		Environment: append(append(standard.List(), options.Environment...),
			environment.Localize(mounts, w.podIP).List()...),
	}, os.MkdirAll(w.folder, 0o700)
}

func hostname(pod *corev1.Pod) string {
	if pod.Spec.Hostname != "" {
		return pod.Spec.Hostname
	}
	return pod.Name
}

// createMessageFile creates the termination message file, empty.
func (u *unit) createMessageFile() error {
	if err := os.MkdirAll(filepath.Dir(u.message), 0o700); err != nil {
		return err
	}
	return os.WriteFile(u.message, nil, 0o600)
}

// mounts returns the mounts of a container, including the mount of its termination message file.
func (w *worker) mounts(u *unit, environment container.Environment) (container.Mounts, error) {
	u.message = filepath.Join(w.folder, "termination", u.spec.Name)
	mounts := []container.Mount{{
		Path: cmp.Or(u.spec.TerminationMessagePath, corev1.TerminationMessagePathDefault), Folder: u.message,
	}}
	for _, mount := range u.spec.VolumeMounts {
		folder, ok := w.folders.Path(mount.Name)
		if !ok {
			return nil, fmt.Errorf("no volume %q", mount.Name)
		}
		below := mount.SubPath
		if mount.SubPathExpr != "" {
			below = container.Expand(mount.SubPathExpr, environment)
		}
		if below != "" {
			if !filepath.IsLocal(below) {
				return nil, fmt.Errorf("subPath %q leaves the volume", below)
			}
			folder = filepath.Join(folder, below)
			if err := ensure(folder); err != nil {
				return nil, err
			}
		}
		mounts = append(mounts, container.Mount{Path: mount.MountPath, Folder: folder})
	}
	return container.NewMounts(mounts), nil
}

// ensure creates the folder of a subPath unless it exists.
func ensure(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	return os.MkdirAll(path, 0o755)
}

// watch starts the probes of a container: the startup probe first, if the container has one, then the others.
func (w *worker) watch(ctx context.Context, u *unit) {
	ctx, u.probes = context.WithCancel(ctx)
	if u.spec.StartupProbe != nil {
		w.probe(ctx, u, probe.Startup, u.spec.StartupProbe)
		return
	}
	w.afterStartup(ctx, u)
}

func (w *worker) afterStartup(ctx context.Context, u *unit) {
	u.started = true
	u.ready = u.spec.ReadinessProbe == nil && !u.initial
	w.probe(ctx, u, probe.Readiness, u.spec.ReadinessProbe)
	w.probe(ctx, u, probe.Liveness, u.spec.LivenessProbe)
}

func (w *worker) probe(ctx context.Context, u *unit, kind probe.Kind, declared *corev1.Probe) {
	if declared == nil {
		return
	}
	target := probe.Target{Kind: kind, Container: u.spec, Run: u.run, PodIP: w.podIP}
	go w.agent.checker.Run(ctx, w.agent.options.Clock, target, declared, w.results)
}

// handleProbe applies the result of a probe to its container, unless the probed process has ended since.
func (w *worker) handleProbe(ctx context.Context, result probe.Update) {
	pod, _ := w.current()
	for _, u := range w.units() {
		if u.spec != result.Container || u.run != result.Run || u.process == nil || u.stopping {
			continue
		}
		if result.Result == probe.Failure {
			w.event(pod, corev1.EventTypeWarning, "Unhealthy", "%s probe failed: %v", result.Kind, result.Err)
		}
		w.applyProbe(ctx, pod, u, result)
	}
}

func (w *worker) applyProbe(ctx context.Context, pod *corev1.Pod, u *unit, result probe.Update) {
	switch {
	case result.Kind == probe.Readiness:
		u.ready = result.Result == probe.Success
	case result.Result == probe.Failure:
		declared := u.spec.LivenessProbe
		if result.Kind == probe.Startup {
			declared = u.spec.StartupProbe
		}
		period := gracePeriod(pod, false)
		if own := declared.TerminationGracePeriodSeconds; own != nil {
			period = time.Duration(*own) * time.Second
		}
		w.event(pod, corev1.EventTypeNormal, "Killing",
			"Container %s failed its %s probe, will be restarted", u.spec.Name, result.Kind)
		u.stop(w.now().Add(period), w.now())
	case result.Kind == probe.Startup && !u.started:
		u.stopProbes()
		ctx, u.probes = context.WithCancel(ctx)
		w.afterStartup(ctx, u)
	}
}
