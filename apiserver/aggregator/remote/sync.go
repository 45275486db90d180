package remote

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// update changes the state of a server, if the server still has APIServices.
func (c *Controller) update(key Server, change func(s *server) (changed bool)) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if s := c.servers[key]; s != nil && change(s) {
		c.changed = true
	}
}

// syncDiscovery downloads the discovery of a server. It returns the errors of all group versions. Any result, also an
// error, completes the first attempt (pending), so that one server that does not respond delays the readiness of this
// server by at most its timeouts. It mirrors discoveryManager.syncAPIService, for all APIServices of a server at a
// time.
func (c *Controller) syncDiscovery(ctx context.Context, key Server) error {
	j, err := c.job(key)
	if err != nil {
		return err
	}
	found, err := c.decoder.discover(ctx, j.backend, j.wanted, j.tag(j.state.discoveryTag, j.state.discovered))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.update(key, func(s *server) bool {
		if err == nil {
			s.discoveryTag, s.discovered = found.tag, s.served(j.wanted)
		}
		return s.setVersions(j.wanted, found, err)
	})
	c.lock.Lock()
	c.pending.Delete(key)
	c.complete()
	c.lock.Unlock()
	if errors.Is(err, errUnchanged) {
		return nil
	}
	for _, failed := range found.failed {
		err = errors.Join(err, failed)
	}
	return err
}

// setVersions stores the result of a download, and reports whether it changes discovery. A failure keeps the last
// valid documents and marks them as stale.
func (s *server) setVersions(wanted []schema.GroupVersion, found serverDiscovery, err error) bool {
	changed := false
	for _, gv := range wanted {
		before := s.versions[gv]
		after := before
		after.Version, after.Freshness = gv.Version, discoveryv2.DiscoveryFreshnessCurrent
		switch {
		case errors.Is(err, errUnchanged):
		case err != nil || found.failed[gv] != nil:
			after.Freshness = discoveryv2.DiscoveryFreshnessStale
		default:
			after.Resources = found.versions[gv].Resources
		}
		if !reflect.DeepEqual(before, after) && s.serves(gv) {
			s.versions[gv] = after
			changed = true
		}
	}
	return changed
}

// served returns the given group versions that still have an APIService of this server. Others were detached during
// the download.
func (s *server) served(wanted []schema.GroupVersion) sets.Set[schema.GroupVersion] {
	return sets.New(slices.DeleteFunc(slices.Clone(wanted), func(gv schema.GroupVersion) bool { return !s.serves(gv) })...)
}

// serves reports whether a group version has an APIService of this server.
func (s *server) serves(gv schema.GroupVersion) bool {
	for _, service := range s.services {
		if service.GroupVersion == gv {
			return true
		}
	}
	return false
}

// syncV2 downloads the OpenAPI version 2 document of a server. As in kube-aggregator, a server that stops serving the
// document keeps the last one.
func (c *Controller) syncV2(ctx context.Context, key Server) error {
	j, err := c.job(key)
	if err != nil {
		return err
	}
	last := j.state.v2
	if !j.state.v2Requested.HasAll(j.wanted...) {
		last = serverV2{}
	}
	body, found, err := fetchV2(ctx, j.backend, last)
	if errors.Is(err, errUnchanged) || errors.Is(err, errMissing) {
		return nil
	}
	if err != nil {
		return err
	}
	c.parsing.Lock()
	found.versions, err = splitV2(body, j.wanted)
	c.parsing.Unlock()
	if err != nil {
		return err
	}
	c.update(key, func(s *server) bool {
		before := s.v2.versions
		maps.DeleteFunc(found.versions, func(gv schema.GroupVersion, _ *OpenAPIV2) bool { return !s.serves(gv) })
		s.v2, s.v2Requested = found, s.served(j.wanted)
		return !maps.EqualFunc(before, found.versions, func(a, b *OpenAPIV2) bool { return a.Tag == b.Tag })
	})
	return nil
}

// syncV3 downloads the index of a server's OpenAPI version 3 documents.
func (c *Controller) syncV3(ctx context.Context, key Server) error {
	j, err := c.job(key)
	if err != nil {
		return err
	}
	found, err := fetchV3(ctx, j.backend, j.wanted)
	if err != nil {
		return err
	}
	c.update(key, func(s *server) bool {
		if s.v3.missing == found.missing && maps.Equal(s.v3.paths, found.paths) {
			return false
		}
		s.v3 = found
		return true
	})
	return nil
}
