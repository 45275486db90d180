package handlers

import (
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
)

// format returns the format in which objects are encoded. YAML is converted from JSON when the response is sent.
func (c *call) format() encoding.Format {
	f := encoding.Format{Resource: c.target.Match, Media: c.output.media}
	if f.Media == codec.YAML {
		f.Media = codec.JSON
	}
	switch {
	case c.output.as == metadataOnly && c.output.group.Version == "v1":
		f.Shape = encoding.Metadata
	case c.output.as == metadataOnly:
		f.Shape = encoding.MetadataV1beta1
	case c.output.undecorated:
		f.Shape = encoding.Undecorated
	}
	return f
}
