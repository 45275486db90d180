package kubernetesservice

import (
	"context"
	"time"
)

// releaseTimeout bounds how long a stopping replica tries to remove its address from the Service.
const releaseTimeout = 3 * time.Second

// Serve keeps the Service and this replica's address in it until ctx ends, then removes the address. It calls done once
// the address that an earlier process may have left is removed, or the removal has failed.
func (c *Controller) Serve(ctx context.Context, done func()) error {
	if err := c.Begin(ctx); err != nil && ctx.Err() == nil {
		c.Logger.Error(err, "The kubernetes Service may still have an address of this replica's previous run",
			"address", c.PublicIP)
	}
	if ctx.Err() != nil {
		return nil
	}
	done()
	c.Run(ctx)
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	c.End(release)
	return nil
}
