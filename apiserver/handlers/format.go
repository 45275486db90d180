package handlers

import (
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/watchcache"
)

// format returns the format of objects in the response. YAML is made from JSON when the response is sent.
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

// encodeInterval is the number of objects encoded between two checks of the context.
const encodeInterval = 16

// items returns the encodings of the entries of a page.
func (c *call) items(f encoding.Format, entries []*watchcache.Entry) ([]codec.Encoding, error) {
	items := make([]codec.Encoding, len(entries))
	ctx := c.r.Context()
	for i, entry := range entries {
		if i%encodeInterval == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var err error
		if items[i], err = entry.Encoded(f); err != nil {
			return nil, err
		}
	}
	return items, nil
}
