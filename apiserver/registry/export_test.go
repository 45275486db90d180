package registry

import "quorate.dev/apiserver/request"

// LimitStored bounds the stored bytes that lists from storage hold, before any is read.
func (r *Registry) LimitStored(bytes int64) { r.listBytes = request.NewByteLimit(bytes) }
