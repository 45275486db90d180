package handlers

import (
	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// formats give every way of encoding objects of one version its identity in the watch cache: by medium, by what is shown
// and by the frame around it. They belong to the version, so that there are as many as there are versions.
type formats [codec.YAML + 1][shapes][frames]watchcache.Format

// What is shown of an object: all, all of it as it is stored, or its metadata in one of two versions.
const (
	shapeWhole = iota
	shapeUndecorated
	shapeMetadata
	shapeMetadataBeta
	shapes
)

// What is around it: nothing, or the frame of a watch event.
const (
	frameNone = iota
	frameAdded
	frameModified
	frameDeleted
	frames
)

// formatsOf returns the formats of a version, the same ones every time.
func formatsOf(v *resource.Version) *formats {
	if kept := v.Kept.Load(); kept != nil {
		return kept.(*formats)
	}
	v.Kept.CompareAndSwap(nil, &formats{})
	return v.Kept.Load().(*formats)
}

// of returns the formats of an output, by frame.
func (f *formats) of(media codec.Media, o output) *[frames]watchcache.Format {
	shape := shapeWhole
	switch {
	case o.as == metadataOnly && o.group.Version == "v1":
		shape = shapeMetadata
	case o.as == metadataOnly:
		shape = shapeMetadataBeta
	case o.undecorated:
		shape = shapeUndecorated
	}
	return &f[media][shape]
}

// frameOf tells which frame an event has.
func frameOf(kind watch.EventType) int {
	switch kind {
	case watch.Added:
		return frameAdded
	case watch.Modified:
		return frameModified
	}
	return frameDeleted
}
